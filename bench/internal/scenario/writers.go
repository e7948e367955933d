package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	writeSQL  = `insert into {outbox} (kind, payload) values ($1, $2)`
	writeStmt = "bench_write"
	// Writers warm up before their commits count, this long and until each has
	// committed so often: plans and caches get warm, and the dispatcher notices that
	// it is under load. When a trigger notifies, all of them commit one by one at
	// first, which takes a slow disk a while.
	warmTime    = 300 * time.Millisecond
	warmCommits = 3
)

// payload is what each writer inserts, made here so that the database has no work
// with it that would hide what a trigger costs.
var payload = []byte(`{"to": "a@example.com", "order": "0123456789abcdef", "text": "` + strings.Repeat("lorem ", 22) + `"}`)

// writers are producers in a closed loop: each commits one task after the other, as
// fast as the database lets it.
type writers struct {
	conns []*pgx.Conn
	// commits has one function per writer, which commits one task.
	commits []func(context.Context) error
}

// written is what they did.
type written struct {
	commits int           // all of them
	counted int           // those within the time that counts
	took    time.Duration // that time
	latency durations     // of the counted
}

func (w written) perSecond() float64 { return float64(w.counted) / w.took.Seconds() }

// openWriters connects n writers, whose flushes take longer by delay. The caller
// must close them.
func openWriters(ctx context.Context, l *lane, n int, delay time.Duration) (_ *writers, err error) {
	w := &writers{conns: make([]*pgx.Conn, n), commits: make([]func(context.Context) error, n)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(ctx))
		}
	}()
	cfg, err := pgx.ParseConfig(l.rig.dsn)
	if err != nil {
		return nil, fmt.Errorf("read --dsn: %w", err)
	}
	// Whatever a given server's default: a producer waits for the disk.
	cfg.RuntimeParams["synchronous_commit"] = "on"
	if delay > 0 {
		// Whoever flushes sleeps first, and flushes what others wrote meanwhile: as on
		// a disk that needs that time.
		cfg.RuntimeParams["commit_delay"] = strconv.FormatInt(delay.Microseconds(), 10)
		cfg.RuntimeParams["commit_siblings"] = "0"
	}
	g, connecting := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() (err error) {
			if w.conns[i], err = pgx.ConnectConfig(connecting, cfg); err != nil {
				return fmt.Errorf("connect %d writers to PostgreSQL (if --dsn is not a superuser's, take --flush-delay=0): %w", n, err)
			}
			if _, err := w.conns[i].Prepare(connecting, writeStmt, l.named(writeSQL)); err != nil {
				return fmt.Errorf("prepare an insert: %w", err)
			}
			w.commits[i] = insertOn(w.conns[i])
			return nil
		})
	}
	return w, g.Wait()
}

// run lets them write, first unmeasured, then for some time measured. It calls mark
// when that time begins and when it ends.
func (w *writers) run(ctx context.Context, measured time.Duration, mark func()) (written, error) {
	ctx, cancel := context.WithTimeout(ctx, measured+2*setupTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	var warm sync.WaitGroup
	warm.Add(len(w.commits))
	var span atomic.Pointer[interval]
	parts := make([]written, len(w.commits))
	for i, commit := range w.commits {
		g.Go(func() (err error) {
			parts[i], err = write(ctx, commit, &span, warm.Done)
			return err
		})
	}
	g.Go(func() error {
		if err := sleep(ctx, warmTime); err != nil {
			return err
		}
		warm.Wait()
		now := time.Now()
		span.Store(&interval{from: now, until: now.Add(measured)})
		mark()
		err := sleep(ctx, measured)
		mark()
		return err
	})
	if err := g.Wait(); err != nil {
		return written{}, err
	}
	all := written{took: measured, latency: newDurations()}
	for _, part := range parts {
		all.commits += part.commits
		all.counted += part.counted
		all.latency.merge(part.latency)
	}
	if all.counted == 0 {
		return written{}, fmt.Errorf("not one of %d writers committed within %v: take a longer time with --seconds", len(w.commits), measured)
	}
	return all, nil
}

// interval is the time that counts.
type interval struct{ from, until time.Time }

// insertOn commits a task by the statement prepared on a connection. It uses the
// driver's lower layer, which takes the least CPU time from what is measured.
func insertOn(conn *pgx.Conn) func(context.Context) error {
	params := [][]byte{[]byte(kind), payload}
	return func(ctx context.Context) error {
		if _, err := conn.PgConn().ExecPrepared(ctx, writeStmt, params, nil, nil).Close(); err != nil {
			return fmt.Errorf("insert a task: %w", err)
		}
		return nil
	}
}

// write commits one task after the other, each awaited, until the span, once it is
// known, is over. It calls warm once, when it has warmed up or failed.
func write(ctx context.Context, commit func(context.Context) error, span *atomic.Pointer[interval], warm func()) (written, error) {
	warm = sync.OnceFunc(warm)
	defer warm()
	done := written{latency: newDurations()}
	for begun := time.Now(); ; {
		if s := span.Load(); s != nil && !begun.Before(s.until) {
			return done, nil
		}
		if err := commit(ctx); err != nil {
			return written{}, err
		}
		ended := time.Now()
		if done.commits++; done.commits == warmCommits {
			warm()
		}
		if s := span.Load(); s != nil && !ended.Before(s.from) && !ended.After(s.until) {
			done.counted++
			done.latency.add(ended.Sub(begun))
		}
		begun = ended
	}
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *writers) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	var errs []error
	for _, conn := range w.conns {
		if conn != nil {
			errs = append(errs, conn.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
