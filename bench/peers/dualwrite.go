package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

// dualWrite commits its row and then publishes by itself. Nothing is faster, and
// whatever happens between the two loses the message: it is the floor, not a choice.
func dualWrite() scenario.Peer {
	return scenario.Peer{
		Name: "dual-write", Title: "the producer commits and then publishes itself, and loses the message if it dies between", Floor: true,
		Open: func(ctx context.Context, at scenario.Site) (scenario.Contender, error) {
			s, err := open(ctx, at, 1)
			if err != nil {
				return nil, err
			}
			if _, err := s.pool.Exec(ctx, `create table `+s.table("business")+` (id bigint primary key, row jsonb not null)`); err != nil {
				return nil, fmt.Errorf("make a table: %w", err)
			}
			return &directly{s}, nil
		},
	}
}

// directly is the dual write on a site.
type directly struct{ *site }

// Producer implements [scenario.Contender].
func (d *directly) Producer(ctx context.Context) (scenario.Producer, error) {
	insert := `insert into ` + d.table("business") + ` (id, row) values ($1, $2)`
	p, err := d.connect(ctx, func(ctx context.Context, tx pgx.Tx, payload scenario.Payload) error {
		_, err := tx.Exec(ctx, insert, payload.Number, payload)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.after = func(ctx context.Context, payload scenario.Payload) error {
		text, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		return d.publish(ctx, payload.Number, text)
	}
	return p, nil
}

// Fill implements [scenario.Contender]. There is no table to fill.
func (d *directly) Fill(context.Context, int) error {
	return fmt.Errorf("a dual write has no backlog")
}

// Run implements [scenario.Contender]. There is nothing to relay.
func (d *directly) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
