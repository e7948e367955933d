package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// still is how long a scene waits for progress before it takes what is left for
// a leftover.
const still = 20 * time.Second

func scene(t *testing.T, o worldOptions) *world {
	t.Helper()
	if o.nodes == 0 {
		o.nodes = 1
	}
	if o.window == 0 {
		o.window = 30 * time.Minute
	}
	if o.wake == "" {
		o.wake = outbox.WakeNotify
	}
	o.env = append([]string{
		"OUTBOX_PUBLISH_TIMEOUT=1s", "OUTBOX_SWEEP_INTERVAL=2s",
		"OUTBOX_RETRY_MIN=100ms", "OUTBOX_RETRY_MAX=1s", "OUTBOX_MAX_ATTEMPTS=1000",
	}, o.env...)
	w := newWorld(t, o)
	if o.nodes == 1 {
		w.awaitOne()
	}
	return w
}

// awaitOne waits until the dispatchers have sent a task, and are idle.
func (w *world) awaitOne() {
	w.t.Helper()
	w.enqueue(1, Transaction{})
	if left := w.drain(patience); left != 0 {
		w.t.Fatal("the first task is not sent")
	}
}

// enqueue commits tasks in one transaction, around the proxies, and returns the
// last number. settings are executed before.
func (w *world) enqueue(count int64, like Transaction, settings ...string) int64 {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.pg.DSN("postgres"))
	defer closeConn(conn)
	like.First, like.Count, like.Outcome, like.Begun = w.history.Reserve(count), count, Committed, time.Now()
	err := pgx.BeginFunc(w.t.Context(), conn, func(tx pgx.Tx) error {
		for _, sql := range settings {
			if _, err := tx.Exec(w.t.Context(), sql); err != nil {
				return err
			}
		}
		_, err := tx.Exec(w.t.Context(), insertSQL, like.First, like.First+count-1)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	like.Ended = time.Now()
	w.history.Record(like)
	return like.First + count - 1
}

func (w *world) value(sql string) (n int64) {
	w.t.Helper()
	ok := w.onDatabase(w.t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&n)
	})
	if !ok {
		w.t.Fatalf("no answer to %s", sql)
	}
	return n
}

func (w *world) stored() uint64 {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), streamName)
	if err != nil {
		return 0
	}
	return s.CachedInfo().State.Msgs
}

func (w *world) awaitStored(n uint64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d messages are stored", n), func() error {
		if have := w.stored(); have < n {
			return fmt.Errorf("%d", have)
		}
		return nil
	})
}
