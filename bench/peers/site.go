package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

// site is a [scenario.Site] with the connections that most peers need.
type site struct {
	scenario.Site
	pool *pgxpool.Pool
	nc   *nats.Conn
	js   jetstream.JetStream
}

// open connects to a site, with so many connections to PostgreSQL. The caller must
// Close it.
func open(ctx context.Context, at scenario.Site, conns int32) (*site, error) {
	cfg, err := pgxpool.ParseConfig(at.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	cfg.MaxConns = conns
	s := &site{Site: at}
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if s.nc, err = nats.Connect(at.NATSURL); err != nil {
		s.close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		s.close()
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	return s, nil
}

// Close implements [scenario.Contender].
func (s *site) Close(context.Context) error { //nolint:unparam // the interface has it
	s.close()
	return nil
}

func (s *site) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	s.pool.Close()
}

// table is a table of the site, quoted for SQL.
func (s *site) table(name string) string { return pgx.Identifier{s.Schema, name}.Sanitize() }

// publish sends a message and waits until the stream has it.
func (s *site) publish(ctx context.Context, id int64, payload []byte) error {
	_, err := s.js.Publish(ctx, s.Subject, payload, jetstream.WithMsgID(s.Name+"."+strconv.FormatInt(id, 10)))
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// producer is a connection that commits tasks, each in a transaction by enqueue.
type producer struct {
	conn    *pgx.Conn
	enqueue func(context.Context, pgx.Tx, scenario.Payload) error
	// after is called when the commit is acknowledged, if it is not nil.
	after func(context.Context, scenario.Payload) error
}

// connect makes a producer.
func (s *site) connect(ctx context.Context, enqueue func(context.Context, pgx.Tx, scenario.Payload) error) (*producer, error) {
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return &producer{conn: conn, enqueue: enqueue}, nil
}

// Commit implements [scenario.Producer].
func (p *producer) Commit(ctx context.Context, payload scenario.Payload) (time.Time, error) {
	err := pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error { return p.enqueue(ctx, tx, payload) })
	committed := time.Now()
	if err == nil && p.after != nil {
		err = p.after(ctx, payload)
	}
	return committed, err
}

// Close implements [scenario.Producer].
func (p *producer) Close(ctx context.Context) error { return p.conn.Close(ctx) }
