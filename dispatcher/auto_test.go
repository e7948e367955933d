package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// startAuto runs a dispatcher with WakeAuto that stands down at once and looks often
// enough to notice what is done to the schema.
func (r *rig) startAuto(change ...func(*Dispatcher)) *running {
	r.t.Helper()
	d := r.make(func(c *Config) {
		c.Wake, c.SweepInterval, c.PollInterval = WakeAuto, 100*time.Millisecond, 20*time.Millisecond
	})
	d.standDown = 10 * time.Millisecond
	for _, c := range change {
		c(d)
	}
	return r.run(d)
}

// uses returns a check of which source is in use and of what is said about it.
func uses(d *running, source WakeMode, healthy bool, detail string) func() error {
	return func() error {
		if h := d.Health().Wake; h.Source != source {
			return fmt.Errorf("health %+v, want source %s", h, source)
		}
		return wakeIs(d, healthy, detail)()
	}
}

// wakesBy inserts a task and sees that a source wakes for it.
func (r *rig) wakesBy(source WakeMode) {
	r.t.Helper()
	if source == WakeNotify {
		r.awaitTriggerWake()
		r.awaitSettled()
		return
	}
	before := see(r.observer, func(w *watcher) int { return w.wakes[string(source)] })
	r.insert("by."+string(source), `{}`)
	eventually(r.t, "woken by "+string(source), r.woken(string(source), before+1))
	r.awaitSettled()
}

// awaitNoWalsender waits until no log is followed in the database.
func (r *rig) awaitNoWalsender() {
	r.t.Helper()
	eventually(r.t, "no walsender is left", func() error {
		if n := query[int](r, `select count(*) from pg_stat_replication where application_name like 'outbox\_wake\_%' and pid in (select pid from pg_stat_activity where datname = current_database())`); n > 0 {
			return fmt.Errorf("%d walsenders", n)
		}
		return nil
	})
}

// The best source that works is in use, whatever becomes of the others, and tasks leave
// throughout.
func TestAutoWakeChangesOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate(outbox.WakeAuto)
	d := r.startAuto()
	eventually(t, "notifications are in use", uses(d, WakeNotify, true, ""))
	r.wakesBy(WakeNotify)
	r.awaitNoWalsender() // the log is not needed

	r.exec(`alter table outbox disable trigger outbox_notify`)
	eventually(t, "the log is in use", uses(d, WakeWAL, true, "notify: the insert trigger outbox_notify is disabled"))
	r.wakesBy(WakeWAL)

	r.migrate(outbox.WakePoll)
	eventually(t, "nothing but polling is left", uses(d, WakePoll, false, "wal: there is no publication"))
	r.insert("polled", `{}`)
	r.awaitSettled()

	r.migrate(outbox.WakeWAL)
	eventually(t, "the log is in use again", uses(d, WakeWAL, true, "notify: the insert trigger outbox_notify is missing"))
	r.wakesBy(WakeWAL)

	r.migrate(outbox.WakeAuto)
	eventually(t, "notifications are in use again", uses(d, WakeNotify, true, ""))
	r.awaitNoWalsender()
	r.wakesBy(WakeNotify)
	d.halt()
	if n := r.slots(); n > 0 {
		t.Errorf("%d slots are left", n)
	}
}

// Listening may be what does not work, while the trigger is all right: then the tasks
// that were inserted while notifications were masked are found all the same.
func TestAutoWakeWithoutListening(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate(outbox.WakeAuto)
	killer := pgtest.Connect(t, r.dsn)
	stop := make(chan struct{})
	var killing sync.WaitGroup
	defer killing.Wait()
	defer close(stop)
	killing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = killer.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query ilike 'listen %'`)
			}
		}
	})
	d := r.startAuto(func(d *Dispatcher) { d.eager = true })
	eventually(t, "the log is in use", uses(d, WakeWAL, true, "notify: "))
	for range 20 {
		r.wakesBy(WakeWAL)
	}
}

// Where neither works, the reasons for both are told.
func TestAutoWakeTellsWhyItPolls(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{Settings: map[string]string{"wal_level": "replica"}})
	r := newRigOn(t, server.DSN("postgres"))
	r.migrate(outbox.WakeAuto)
	r.exec(`drop trigger outbox_notify on outbox`)
	d := r.startAuto()
	eventually(t, "both are told", uses(d, WakePoll, false, "notify: the insert trigger outbox_notify is missing: run 'dispatcher migrate up --wake=auto'; wal: "))
	eventually(t, "what the log lacks is told", uses(d, WakePoll, false, "set wal_level = logical"))
	if all := d.Health().Sources; len(all) != 2 || all[0].Source != WakeNotify || all[1].Source != WakeWAL {
		t.Errorf("sources %+v", all)
	}
	r.insert("polled", `{}`)
	r.awaitSettled()
	r.migrate(outbox.WakeAuto)
	eventually(t, "notifications are in use", uses(d, WakeNotify, true, ""))
}

// The second source runs while the first has been unhealthy for a second, and until it
// has been healthy for fifteen.
func TestStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &Dispatcher{log: slog.New(slog.DiscardHandler), wakes: make(wakeSignal, 1), cover: newSignal(), standDown: standDownAfter}
		d.wake = newWakes(WakeAuto, func(WakeHealth) {})
		time.Sleep(time.Minute) // before it runs, there was nothing to be healthy
		running := false
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.standIn(ctx, source(func(ctx context.Context, wake func()) error {
				running = true
				defer func() { running = false }()
				wake()
				d.wake.wal.heard()
				<-ctx.Done()
				return nil
			}))
		}()
		check := func(after time.Duration, run bool, want WakeMode) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if h := d.wake.snapshot(); running != run || h.Source != want {
				t.Errorf("running %t, health %+v; want %t and %s", running, h, run, want)
			}
		}
		check(0, false, WakePoll)
		d.wake.notify.heard()
		check(time.Minute, false, WakeNotify)
		d.wake.notify.lost("x")
		check(standInAfter/2, false, WakePoll)
		d.wake.notify.heard()
		check(time.Minute, false, WakeNotify)
		d.wake.notify.lost("x")
		check(standInAfter, true, WakeWAL)
		d.wake.notify.heard()
		check(standDownAfter/2, true, WakeNotify)
		d.wake.notify.lost("y")
		check(0, true, WakeWAL)
		d.wake.notify.heard()
		check(standDownAfter, false, WakeNotify)
		if all := d.wake.sources(); all[1].Detail != standsBy {
			t.Errorf("sources %+v", all)
		}
		d.wake.notify.lost("z")
		check(standInAfter, true, WakeWAL)
		cancel()
		<-ended
		if running {
			t.Error("it still runs")
		}
	})
}
