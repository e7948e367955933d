package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// product is the thing that is measured, running: a dispatcher within this
// process, or the daemon beside it.
type product struct {
	stopping atomic.Bool
	// ended is closed once it runs no more; cause tells, after that, why: nil after
	// a stop.
	ended <-chan struct{}
	cause func() error
	end   func()
	// pid is the daemon's process, 0 for a dispatcher within this one.
	pid int
}

// close ends the product gracefully and waits for it.
func (p *product) close(context.Context) error {
	p.stopping.Store(true)
	p.end()
	<-p.ended
	return p.cause()
}

// died returns an error if the product ended by itself.
func (p *product) died() error {
	select {
	case <-p.ended:
	default:
		return nil
	}
	switch err := p.cause(); {
	case err != nil:
		return fmt.Errorf("the dispatcher ended: %w", err)
	case p.stopping.Load():
		return nil
	default:
		return errors.New("the dispatcher ended without being asked to")
	}
}

// runProduct starts the product on a lane, in the form that the flags choose.
// The observer sees only a dispatcher within this process. The caller must
// close the product.
func (b *bench) runProduct(ctx context.Context, l *lane, o dispatcher.Observer) (*product, error) {
	if b.Process {
		return b.runDaemon(ctx, l)
	}
	return runEmbedded(ctx, l, o)
}

// form tells which form that is.
func (b *bench) form() string {
	if b.Process {
		return "daemon as a process"
	}
	return "dispatcher within the bench process"
}

// embeddedConns are connections beside the workers'.
const embeddedConns = 3

func runEmbedded(ctx context.Context, l *lane, o dispatcher.Observer) (*product, error) {
	cfg, err := l.rig.poolConfig(dispatcher.DefaultWorkers + embeddedConns)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	nc, err := l.rig.connect("dispatcher")
	if err != nil {
		pool.Close()
		return nil, err
	}
	d, err := dispatcher.New(dispatcher.Config{
		Pool: pool, NATS: nc, Schema: l.schema, Prefix: l.prefix, Wake: l.wake,
		Observer: o, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		pool.Close()
		nc.Close()
		return nil, err
	}
	return embed(ctx, d, pool, nc), nil
}

// embed runs d in this process, with connections, if it has any, that are closed after it.
func embed(ctx context.Context, d interface{ Run(context.Context) error }, pool *pgxpool.Pool, nc *nats.Conn) *product {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	var cause error
	go func() {
		defer close(ended)
		cause = d.Run(running)
		if nc != nil {
			nc.Close()
		}
		if pool != nil {
			pool.Close()
		}
	}()
	return &product{ended: ended, cause: func() error { return cause }, end: cancel}
}

// progress counts what an embedded dispatcher settles, and takes the time of a
// backlog: from the start of the first claim that found something.
type progress struct {
	dispatcher.NopObserver
	want    int64
	settled atomic.Int64
	first   atomic.Int64 // nanoseconds since begun, 0: nothing claimed yet
	last    atomic.Int64
	begun   time.Time
	done    chan struct{} // closed once want tasks are settled
}

func newProgress(want int) *progress {
	return &progress{want: int64(want), begun: time.Now(), done: make(chan struct{})}
}

// Claimed implements [dispatcher.Observer].
func (p *progress) Claimed(tasks int, took time.Duration) {
	if tasks > 0 {
		p.first.CompareAndSwap(0, int64(time.Since(p.begun)-took))
	}
}

// Settled implements [dispatcher.Observer].
func (p *progress) Settled(tasks []dispatcher.Task, _ []dispatcher.Result, _ time.Duration) {
	n := int64(len(tasks))
	if total := p.settled.Add(n); total >= p.want && total-n < p.want {
		p.last.Store(int64(time.Since(p.begun)))
		close(p.done)
	}
}

// took is the time from the first claim to the last settlement, once done.
func (p *progress) took() time.Duration { return time.Duration(p.last.Load() - p.first.Load()) }
