package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// A dispatcher dies with the notifications masked, or on its way back to sleep,
// while transactions that skipped their notification are open. Another one runs
// beside it, which may die there, too. Sweeps are switched off: the next start has
// to find the tasks.
func TestKilledWithTheMask(t *testing.T) {
	t.Parallel()
	// The first times that the lease is cleared are at the start.
	for _, point := range []string{"masked#1", "after-clear#5", "after-draw#5"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			daemons := []*daemon{r.start(noSweep, "OUTBOX_FAILPOINT="+point), r.start(noSweep, "OUTBOX_FAILPOINT="+point)}
			r.awaitListeners(2)
			conns := r.producers(32)
			var dead *daemon
			// In bursts, so that they find their way back to sleep.
			for i := 0; dead == nil; i++ {
				finish := func() {}
				if i%2 == 0 {
					finish = r.produce(conns)
				}
				select {
				case <-daemons[0].done:
					dead = daemons[0]
				case <-daemons[1].done:
					dead = daemons[1]
				case <-time.After(200 * time.Millisecond):
				}
				finish()
				if i == 400 {
					t.Fatal("the failpoint was not reached")
				}
			}
			if s := dead.await(); !s.Signaled() || s.Signal() != syscall.SIGKILL {
				t.Fatalf("the daemon ended otherwise: %v", s)
			}
			r.start(noSweep)
			r.awaitSent()
			r.checkStored()
		})
	}
}

const noSweep = "OUTBOX_SWEEP_INTERVAL=10m"

// Dispatchers are killed at random under the same load, with no sweep at all.
func TestKilledAtRandomWithTheMask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	daemons := []*daemon{r.start(noSweep), r.start(noSweep)}
	r.awaitListeners(2)
	finish := r.produce(r.producers(32))
	for range 8 {
		before := r.count(`select count(*) from outbox where sent_at is not null`)
		eventually(t, "tasks flow", func() error {
			if n := r.count(`select count(*) from outbox where sent_at is not null`); n < before+200 {
				return fmt.Errorf("%d tasks since", n-before)
			}
			return nil
		})
		i := rand.N(len(daemons))
		daemons[i].kill()
		daemons[i] = r.start(noSweep)
	}
	finish()
	r.awaitSent()
	r.checkStored()
}

func (r *rig) awaitListeners(want int) {
	r.t.Helper()
	eventually(r.t, "they listen", func() error {
		if n := r.count(`select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'`); n < want {
			return fmt.Errorf("%d listeners", n)
		}
		return nil
	})
}

func (r *rig) producers(n int) (conns []*pgx.Conn) {
	r.t.Helper()
	for range n {
		conns = append(conns, pgtest.Connect(r.t, r.dsn))
	}
	return conns
}

// produce inserts tasks in transactions that stay open for a while, until the
// returned function is called, which waits for their end.
func (r *rig) produce(conns []*pgx.Conn) (finish func()) {
	ctx, stop := context.WithCancel(r.t.Context())
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := produceSlowly(conn); err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	return func() {
		stop()
		wg.Wait()
	}
}

func produceSlowly(conn *pgx.Conn) error {
	ctx := context.Background() // a transaction is finished
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.Exec(ctx, `insert into outbox (kind, payload) values ('slow', '{}')`); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	time.Sleep(rand.N(30 * time.Millisecond)) // what the transaction does besides
	return tx.Commit(ctx)
}
