package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

const (
	// Once a second and a hundred at a time are what most such relays have.
	relayInterval = time.Second
	relayBatch    = 100
)

// pollRelay is the relay that most teams write for themselves first.
func pollRelay() scenario.Peer {
	return scenario.Peer{
		Name: "poll-relay", Title: "a relay of one's own: looks once a second, locks 100 rows, publishes one by one, marks them, goes on while there are more",
		Polls: true, Defaults: true,
		Open: func(ctx context.Context, at scenario.Site) (scenario.Contender, error) {
			s, err := open(ctx, at, 2)
			if err != nil {
				return nil, err
			}
			// A batch sends its statements one by one, and has no arguments to prepare for.
			for _, sql := range []string{
				`create table ` + s.table("outbox") + ` (id bigint generated always as identity primary key, payload jsonb not null, created_at timestamptz not null default now(), sent_at timestamptz)`,
				`create index on ` + s.table("outbox") + ` (id) where sent_at is null`,
			} {
				if _, err := s.pool.Exec(ctx, sql); err != nil {
					return nil, fmt.Errorf("make the table: %w", err)
				}
			}
			return &polling{s}, nil
		},
	}
}

// polling is the relay on a site.
type polling struct{ *site }

// Producer implements [scenario.Contender].
func (p *polling) Producer(ctx context.Context) (scenario.Producer, error) {
	insert := `insert into ` + p.table("outbox") + ` (payload) values ($1)`
	return p.connect(ctx, func(ctx context.Context, tx pgx.Tx, payload scenario.Payload) error {
		_, err := tx.Exec(ctx, insert, payload)
		return err
	})
}

// Fill implements [scenario.Contender].
func (p *polling) Fill(ctx context.Context, n int) error {
	_, err := p.pool.CopyFrom(ctx, pgx.Identifier{p.Schema, "outbox"}, []string{"payload"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) { return []any{scenario.NewPayload(int64(i + 1))}, nil }))
	if err != nil {
		return fmt.Errorf("insert %d tasks: %w", n, err)
	}
	return nil
}

// Run implements [scenario.Contender].
func (p *polling) Run(ctx context.Context) error {
	tick := time.NewTicker(relayInterval)
	defer tick.Stop()
	for {
		for {
			// What is in hand is finished.
			n, err := p.relay(context.WithoutCancel(ctx))
			if err != nil {
				return err
			}
			if n < relayBatch || ctx.Err() != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
const relaySQL = `select id, payload from %s where sent_at is null order by id limit $1 for update skip locked`

// relay publishes one batch and returns its size.
func (p *polling) relay(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, fmt.Sprintf(relaySQL, p.table("outbox")), relayBatch)
		if err != nil {
			return err
		}
		tasks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			ID      int64
			Payload []byte
		}])
		if err != nil {
			return err
		}
		ids := make([]int64, 0, len(tasks))
		for _, t := range tasks {
			if err := p.publish(ctx, t.ID, t.Payload); err != nil {
				return err
			}
			ids = append(ids, t.ID)
		}
		n = len(ids)
		if n == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, `update `+p.table("outbox")+` set sent_at = now() where id = any($1)`, ids)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("relay: %w", err)
	}
	return n, nil
}
