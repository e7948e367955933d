package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
)

// own is the product as a contender: tasks by outbox.Enqueue, a dispatcher as it is
// shipped.
type own struct{ lane *lane }

// Producer implements [Contender].
func (o *own) Producer(ctx context.Context) (Producer, error) {
	conn, err := pgx.Connect(ctx, o.lane.rig.dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return &ownProducer{conn, outbox.Outbox{Schema: o.lane.schema}}, nil
}

// Fill implements [Contender].
func (o *own) Fill(ctx context.Context, n int) error { return o.lane.fill(ctx, n) }

// Run implements [Contender].
func (o *own) Run(ctx context.Context) error { return fleet{lane: o.lane, n: 1}.Run(ctx) }

// Close implements [Contender].
func (o *own) Close(context.Context) error { return nil }

type ownProducer struct {
	conn   *pgx.Conn
	outbox outbox.Outbox
}

// Commit implements [Producer].
func (p *ownProducer) Commit(ctx context.Context, payload Payload) (time.Time, error) {
	err := pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
		_, err := p.outbox.Enqueue(ctx, tx, outbox.Task{Kind: kind, Payload: payload})
		return err
	})
	return time.Now(), err
}

// Close implements [Producer].
func (p *ownProducer) Close(ctx context.Context) error { return p.conn.Close(ctx) }
