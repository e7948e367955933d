package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// leaveMask sets the lease as a dispatcher would that died right then.
func (r *rig) leaveMask() {
	r.t.Helper()
	r.exec(`select setval('outbox_mask', (extract(epoch from clock_timestamp()) * 1000)::bigint + 4000)`)
}

// masked is the rest of the lease in ms, zero or less if it is not running.
func (r *rig) masked() int64 {
	r.t.Helper()
	return query[int64](r, `select last_value - (extract(epoch from clock_timestamp()) * 1000)::bigint from outbox_mask`)
}

// A dispatcher that starts covers for one that died: it clears the lease, and waits
// for a transaction that skipped its notification, however long that takes. There
// is no sweep, and nothing else wakes it.
func TestStartCoversForADeadDispatcher(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leaveMask()
	slow := pgtest.Connect(t, r.dsn)
	if _, err := slow.Exec(t.Context(), `begin; insert into outbox (kind, payload) values ('slow', '{}')`); err != nil {
		t.Fatal(err)
	}
	d := r.start()
	eventually(t, "the lease is cleared", func() error {
		if n := query[int64](r, `select last_value from outbox_mask`); n != 0 {
			return fmt.Errorf("it is %d", n)
		}
		return nil
	})
	eventually(t, "wakes arrive", healthyWake(d))
	r.insert("quick", `{}`)
	r.awaitSettled()
	if _, err := slow.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	r.awaitSettled()
}

// The lease of a dead dispatcher runs out, and the sweep of another finds what was
// skipped under it.
func TestSweepFindsWhatADeadDispatcherSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start(func(c *Config) { c.SweepInterval = 300 * time.Millisecond })
	eventually(t, "wakes arrive", healthyWake(d))
	eventually(t, "a task skips its notification", func() error {
		r.leaveMask()
		r.insert("skipped", `{}`)
		if r.masked() <= 0 {
			return errors.New("too slow")
		}
		return nil
	})
	r.awaitSettled()
	if n := see(r.observer, func(w *watcher) int { return w.wakes["sweep"] }); n == 0 {
		t.Error("something else than the sweep found it")
	}
}

// Under load the notifications are masked; soon after it they are not, and a task
// wakes the dispatcher again.
func TestLoadMasksTheNotifications(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	eventually(t, "wakes arrive", healthyWake(d))
	eventually(t, "the notifications are masked", func() error {
		for range 20 {
			r.insert("steady", `{}`)
		}
		if n := r.masked(); n <= 0 || !d.Health().Wake.Masked {
			return fmt.Errorf("the lease ended %d ms ago; %+v", -n, d.Health().Wake)
		}
		return nil
	})
	eventually(t, "they are no more", func() error {
		if n := query[int64](r, `select last_value from outbox_mask`); n != 0 || d.Health().Wake.Masked {
			return fmt.Errorf("the lease is %d; %+v", n, d.Health().Wake)
		}
		return nil
	})
	woken := see(r.observer, func(w *watcher) int { return w.wakes["notify"] })
	r.insert("late", `{}`)
	r.awaitSettled()
	if n := see(r.observer, func(w *watcher) int { return w.wakes["notify"] }); n == woken {
		t.Error("no notification woke it")
	}
}

// While the broker is away nothing is polled, and the mask is not held.
func TestNoMaskWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.make()
	d.eager = true
	run := r.run(d)
	eventually(t, "wakes arrive", healthyWake(run))
	// A producer that goes on, so that it happens under load.
	producer, ctx := pgtest.Connect(t, r.dsn), t.Context()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if _, err := producer.Exec(ctx, `insert into outbox (kind, payload) values ('waiting', '{}')`); err != nil {
				stopped <- err
				return
			}
		}
	}()
	eventually(t, "the mask is held", func() error {
		if !run.Health().Wake.Masked {
			return errors.New("it is not")
		}
		return nil
	})
	r.nats.Stop(t)
	eventually(t, "the circuit is open, the mask not held", func() error {
		h := run.Health()
		if n := query[int64](r, `select last_value from outbox_mask`); n != 0 || h.Wake.Masked || !h.Circuit.Open {
			return fmt.Errorf("the lease is %d; %+v", n, h)
		}
		return nil
	})
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	r.nats.Restart(t)
	r.awaitSettled()
}

// A dispatcher that stops while it holds the mask asks the others to look for what
// was skipped: one that sleeps, with no sweep, and a transaction that is open.
func TestStopHandsTheMaskOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := r.start()
	eventually(t, "wakes arrive", healthyWake(other))
	d := r.make()
	d.eager = true
	polling := r.run(d)
	slow := pgtest.Connect(t, r.dsn)
	eventually(t, "a transaction skips its notification", func() error {
		r.insert("steady", `{}`)
		if _, err := slow.Exec(t.Context(), `begin; insert into outbox (kind, payload) values ('slow', '{}')`); err != nil {
			t.Fatal(err)
		}
		if r.masked() > 0 && polling.Health().Wake.Masked && !other.Health().Wake.Masked {
			return nil
		}
		if _, err := slow.Exec(t.Context(), `rollback`); err != nil {
			t.Fatal(err)
		}
		return errors.New("the notifications are not masked")
	})
	polling.halt()
	if n := query[int64](r, `select last_value from outbox_mask`); n != 0 {
		t.Errorf("the lease is %d after the stop", n)
	}
	if _, err := slow.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	r.awaitSettled()
}

// A dispatcher that may not set the lease, at its start or from some time on,
// dispatches all the same and says so; once it may, it does.
func TestRightsOnTheMaskComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	role := "plain_" + query[string](r, `select current_database()`)
	r.exec(`create role ` + role)
	r.exec(`grant select, update on outbox to ` + role + `; grant select on outbox_source to ` + role)
	d := r.make(func(c *Config) {
		cfg := c.Pool.Config()
		cfg.ConnConfig.RuntimeParams["role"] = role
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		c.Pool, c.PollInterval, c.SweepInterval = pool, 10*time.Millisecond, 100*time.Millisecond
	})
	d.eager = true
	run := r.run(d)
	for _, tt := range []struct {
		change string
		masks  bool
	}{
		{`select 1`, false},
		{`grant update on sequence outbox_mask to ` + role, true}, // everybody may read it
		{`revoke update on sequence outbox_mask from ` + role, false},
		{`grant update on sequence outbox_mask to ` + role, true},
		{`revoke select on sequence outbox_mask from public`, false}, // the producer is a superuser
		{`grant select on sequence outbox_mask to public`, true},
		{`drop sequence outbox_mask cascade`, false}, // with the trigger
	} {
		r.exec(tt.change)
		eventually(t, "it masks or says why not after "+tt.change, func() error {
			r.insert("plain", `{}`)
			h := run.Health().Wake
			if h.Masked != tt.masks || (h.Detail == "") != tt.masks {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
		r.awaitSettled()
	}
}

// slowPublisher waits until it is let go on.
type slowPublisher struct {
	publisher
	goOn chan struct{}
}

func (s *slowPublisher) publish(ctx context.Context, tasks []Task, deadline time.Time) []Result {
	<-s.goOn
	return s.publisher.publish(ctx, tasks, deadline)
}

// While all workers are busy with a slow broker, a notification is of no use: the mask
// that is held is renewed.
func TestMaskIsRenewedWhileWorkersAreBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := &slowPublisher{goOn: make(chan struct{})}
	d := r.make(func(c *Config) { c.Workers = 1 })
	d.eager = true
	d.wrap = func(p publisher) publisher {
		slow.publisher = p
		return slow
	}
	run := r.run(d)
	eventually(t, "wakes arrive", healthyWake(run))
	r.insert("stuck", `{}`)
	eventually(t, "the mask is held", func() error {
		if !run.Health().Wake.Masked {
			return errors.New("it is not")
		}
		return nil
	})
	first := query[int64](r, `select last_value from outbox_mask`)
	eventually(t, "it is renewed three times", func() error {
		if n := query[int64](r, `select last_value from outbox_mask`); n < first+3*maskRenew.Milliseconds() {
			return fmt.Errorf("by %d ms", n-first)
		}
		return nil
	})
	close(slow.goOn)
	r.awaitSettled()
}
