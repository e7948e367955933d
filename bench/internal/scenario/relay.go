package scenario

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
)

// relay is the floor under load: it claims, publishes and commits without pause for
// thought. It checks nothing, counts nothing and survives nothing, and knows by
// itself that there is always work.
type relay struct {
	lane  *lane
	pool  *pgxpool.Pool
	js    jetstream.JetStream
	stmt  string
	slots chan struct{} // what is published beside the next claim
}

// relayPause is the time between two claims. Shorter ones gave no lower latency: with
// less to do per claim the processors have more to do per task.
const relayPause = 300 * time.Microsecond

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
const relayClaimSQL = `
with due as materialized (
  select id
    from {outbox}
   where sent_at is null and dead_at is null and send_after <= now()
     and send_after > now() - interval '2 seconds'
   order by send_after, id
   limit 1000
     for update skip locked
)
update {outbox} as o
   set sent_at = now(), attempts = o.attempts + 1
  from due
 where o.id = due.id
returning o.id, o.payload, o.created_at`

// runRelay starts a relay on a lane. The caller must close it.
func runRelay(ctx context.Context, l *lane) (*product, error) {
	const workers = 4
	cfg, err := l.rig.poolConfig(workers)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	nc, err := l.rig.connect("relay")
	if err != nil {
		pool.Close()
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		pool.Close()
		nc.Close()
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	return embed(ctx, &relay{lane: l, pool: pool, js: js, stmt: l.named(relayClaimSQL), slots: make(chan struct{}, workers)}, pool, nc), nil
}

// Run relays until ctx ends, and finishes what is in hand.
func (r *relay) Run(ctx context.Context) error {
	inHand, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil && inHand.Err() == nil {
		r.slots <- struct{}{}
		conn, err := r.pool.Acquire(inHand)
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		claimed, err := bareClaim(inHand, conn.Conn(), r.stmt)
		if err != nil {
			conn.Release()
			return fmt.Errorf("relay: claim: %w", err)
		}
		wg.Go(func() {
			defer func() { <-r.slots }()
			defer conn.Release()
			if err := r.send(inHand, conn.Conn(), claimed); err != nil {
				stop(fmt.Errorf("relay: %w", err))
			}
		})
		time.Sleep(relayPause)
	}
	wg.Wait()
	return context.Cause(inHand)
}

// send publishes what was claimed and commits.
func (r *relay) send(ctx context.Context, conn *pgx.Conn, claimed []bareTask) error {
	futures := make([]jetstream.PubAckFuture, 0, len(claimed))
	for _, t := range claimed {
		f, err := r.js.PublishMsgAsync(t.message(r.lane), jetstream.WithRetryAttempts(0))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		futures = append(futures, f)
	}
	if err := await(ctx, futures); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if _, err := conn.Exec(ctx, "commit"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
