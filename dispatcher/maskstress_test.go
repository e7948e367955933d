package dispatcher

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

var stressFor = flag.Duration("stress", 5*time.Second, "how long to look for tasks that the masked wake leaves behind")

// The masked wake on a real database, with no sweep to hide a fault: many
// producers whose transactions stay open for a random time, two dispatchers that
// fall asleep after each round, and one of them stopped and replaced now and then.
func TestMaskStress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := func() *running {
		d := r.make()
		d.eager = true
		return r.run(d)
	}
	kept, other := start(), start()
	eventually(t, "wakes arrive", healthyWake(kept))
	producers := make([]*pgx.Conn, 32)
	for i := range producers {
		producers[i] = pgtest.Connect(t, r.dsn)
	}
	rounds, tasks := 0, 0
	for end := time.Now().Add(*stressFor); time.Now().Before(end); rounds++ {
		longest := rand.N(50 * time.Millisecond)
		var wg sync.WaitGroup
		for _, p := range producers {
			n := 1 + rand.N(2)
			tasks += n
			wg.Go(func() {
				for range n {
					if err := produceSlowly(t, p, longest); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if rand.N(3) == 0 {
			other.halt()
			other = start()
		}
		wg.Wait()
		r.awaitSettled()
		// The next round finds them asleep, or on the last steps to it.
		eventually(t, "the notifications are not masked", func() error {
			if n := query[int64](r, `select last_value from outbox_mask`); n != 0 {
				return fmt.Errorf("the lease is %d", n)
			}
			return nil
		})
		if t.Failed() {
			return
		}
	}
	phases := see(r.observer, func(w *watcher) int { return w.wakes["unmask"] })
	t.Logf("%d rounds, up to %d tasks, %d looks on the way back to sleep", rounds, tasks, phases)
	// A look on the way back that was wanted for another reason, too, is not counted.
	if phases < rounds/4 {
		t.Errorf("the notifications were hardly ever masked: %d looks on the way back to sleep in %d rounds", phases, rounds)
	}
}

// produceSlowly inserts a task in a transaction that stays open for a while; some
// are rolled back, some have a transaction id for long before.
func produceSlowly(t *testing.T, conn *pgx.Conn, longest time.Duration) error {
	ctx := t.Context()
	// Not a wait for anything: it is what the transaction does besides.
	pause := func() { time.Sleep(rand.N(longest + 1)) }
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if rand.N(4) == 0 {
		if _, err := tx.Exec(ctx, `select pg_current_xact_id()`); err != nil {
			return fmt.Errorf("get a transaction id: %w", err)
		}
		pause()
	}
	if _, err := tx.Exec(ctx, `insert into outbox (kind, payload) values ('stress', '{}')`); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if rand.N(3) > 0 {
		pause()
	}
	if rand.N(20) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}
