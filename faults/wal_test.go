package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/outbox-dispatcher/outbox"
)

// Dispatchers that follow the write-ahead log are killed at random, and so are
// their walsenders, while transactions are open and with no sweep at all. Nothing
// is left: no task, and no slot, which would keep the log from being recycled.
func TestKilledAtRandomWithTheWAL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := outbox.Migrate(t.Context(), r.db, outbox.MigrateOptions{Wake: outbox.WakeWAL}); err != nil {
		t.Fatal(err)
	}
	const followsWAL = "OUTBOX_WAKE=wal"
	daemons := []*daemon{r.start(noSweep, followsWAL), r.start(noSweep, followsWAL)}
	r.awaitFollowers(2)
	finish := r.produce(r.producers(16))
	for n := range 8 {
		before := r.count(`select count(*) from outbox where sent_at is not null`)
		eventually(t, "tasks flow", func() error {
			if n := r.count(`select count(*) from outbox where sent_at is not null`); n < before+100 {
				return fmt.Errorf("%d tasks since", n-before)
			}
			return nil
		})
		if n%2 == 0 {
			r.exec(`select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database() and active_pid is not null`)
			continue
		}
		i := rand.N(len(daemons))
		daemons[i].kill()
		daemons[i] = r.start(noSweep, followsWAL)
	}
	finish()
	r.awaitSent()
	r.checkStored()
	r.awaitFollowers(2)
	for _, d := range daemons {
		d.kill()
	}
	eventually(t, "no slot is left", func() error {
		if n := r.count(`select count(*) from pg_replication_slots where database = current_database()`); n > 0 {
			return fmt.Errorf("%d slots", n)
		}
		return nil
	})
}

func (r *rig) awaitFollowers(want int) {
	r.t.Helper()
	eventually(r.t, "they follow the log", func() error {
		if n := r.count(`select count(*) from pg_replication_slots where database = current_database() and active`); n != want {
			return fmt.Errorf("%d slots", n)
		}
		return nil
	})
}
