package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// testedSource is a wake source in a test that all of them must pass.
type testedSource struct {
	WakeSource
	// other is what sends the canary of another process, and kill what ends the
	// source's backends.
	other, kill string
}

// wakeSources are all that there are.
var wakeSources = map[string]func(r *rig) testedSource{
	"listen": func(r *rig) testedSource {
		return testedSource{
			&Listen{Config: parsed(r.t, r.dsn), Channel: channelName("public"), Canary: "canary x", OnCanary: func() {}, OnCover: func() {}},
			`select pg_notify('` + channelName("public") + `', 'canary other')`,
			`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen %'`,
		}
	},
	"replication": func(r *rig) testedSource {
		return testedSource{
			replication(r),
			`select pg_logical_emit_message(true, '` + testPublication + `', 'canary other')`,
			`select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()`,
		}
	},
}

func TestWakeSourceConformance(t *testing.T) {
	t.Parallel()
	for name, tested := range wakeSources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := dbRig(t)
			source := tested(r)
			const left = `select (select count(*) from pg_stat_activity where datname = current_database()) +
				(select count(*) from pg_replication_slots where database = current_database())`
			before := query[int](r, left)
			run := runSource(t, source)
			run.await("when subscribed")
			r.insert("a", `{}`)
			run.await("for an insert")
			// A canary of somebody else is no wake; the insert after it is.
			r.exec(source.other)
			r.insert("a", `{}`)
			run.await("for an insert")
			if err := run.stop(); err != nil {
				t.Errorf("after cancel: %v", err)
			}
			if n := len(run.wakes); n > 0 {
				t.Errorf("%d wakes too many", n)
			}

			// A killed backend is an error, and the source can be run again.
			run = runSource(t, source)
			run.await("when subscribed again")
			r.exec(source.kill)
			if err := run.ended(); err == nil {
				t.Error("no error after its backend was killed")
			}
			eventually(t, "no connection and no slot is left", func() error {
				if n := query[int](r, left); n > before {
					return fmt.Errorf("%d, %d before", n, before)
				}
				return nil
			})
		})
	}
}

// sourceRun is a wake source that runs.
type sourceRun struct {
	t      *testing.T
	wakes  chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done
}

// runSource runs a source until the end of the test or its stop.
func runSource(t *testing.T, source WakeSource) *sourceRun {
	ctx, cancel := context.WithCancel(t.Context())
	run := &sourceRun{t: t, wakes: make(chan struct{}, 100_000), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(run.done)
		run.err = source.Run(ctx, func() { run.wakes <- struct{}{} })
	}()
	t.Cleanup(func() { _ = run.stop() })
	return run
}

// await waits for a wake.
func (run *sourceRun) await(what string) {
	run.t.Helper()
	select {
	case <-run.wakes:
	case <-run.done:
		run.t.Fatalf("no wake %s: the source ended: %v", what, run.err)
	case <-time.After(patience):
		run.t.Fatalf("no wake %s", what)
	}
}

// stop ends the source and returns what Run did.
func (run *sourceRun) stop() error {
	run.cancel()
	return run.ended()
}

// ended waits for the end of the source and returns what Run did.
func (run *sourceRun) ended() error {
	run.t.Helper()
	select {
	case <-run.done:
		return run.err
	case <-time.After(patience):
		run.t.Fatal("Run did not return")
		return nil
	}
}

// proxied is the listen address through a proxy.
func proxied(t *testing.T, dsn string) (*faultproxy.Proxy, *pgx.ConnConfig) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.New(fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	cfg.Host, cfg.Port = "127.0.0.1", uint16(p.Port()) // #nosec G115 -- a port
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	return p, cfg
}

// A half-open connection, or a pooler that swallows notifications, looks like
// silence. The dispatcher must notice, say so, go on by polling, and recover.
func TestSilentListenConnection(t *testing.T) {
	t.Parallel()
	for name, dirs := range map[string][]faultproxy.Direction{
		"half-open":               nil,
		"notifications swallowed": {faultproxy.ToClient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			proxy, listen := proxied(t, r.dsn)
			d := r.start(func(c *Config) {
				c.Listen, c.SweepInterval, c.PollInterval = listen, 100*time.Millisecond, 20*time.Millisecond
			})
			eventually(t, "wakes arrive", healthyWake(d))
			proxy.Stall(dirs...)
			eventually(t, "the silence is noticed", func() error {
				if h := d.Health().Wake; h.Healthy || !strings.Contains(h.Detail, "test notification") {
					return fmt.Errorf("%+v", h)
				}
				return nil
			})
			if !d.Health().Ready() {
				t.Error("not ready, though tasks flow")
			}
			r.insert("polled", `{}`)
			r.awaitSettled()
			proxy.Resume()
			eventually(t, "wakes arrive again", healthyWake(d))
		})
	}
}

func TestMissingTriggerIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start(func(c *Config) { c.SweepInterval, c.PollInterval = 100*time.Millisecond, 20*time.Millisecond })
	eventually(t, "wakes arrive", healthyWake(d))
	for _, how := range []string{`disable`, `enable replica`} {
		r.exec(`alter table outbox ` + how + ` trigger outbox_notify`)
		eventually(t, "it is noticed", func() error {
			if h := d.Health().Wake; h.Healthy || !strings.Contains(h.Detail, "trigger") {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
		r.insert("polled", `{}`)
		r.awaitSettled()
		r.exec(`alter table outbox enable trigger outbox_notify`)
		eventually(t, "wakes arrive again", healthyWake(d))
	}
}

// The dispatcher listens where the trigger notifies, whatever the schema's name.
func TestChannelIsTheTriggers(t *testing.T) {
	t.Parallel()
	const schema = "My \"Outbox\"-1"
	dsn := pgtest.NewDB(t)
	pgtest.Migrate(t, dsn, schema)
	conn := pgtest.Connect(t, dsn)
	pgtest.Exec(t, conn, "listen "+pgx.Identifier{channelName(schema)}.Sanitize())
	pgtest.Exec(t, conn, `insert into outbox (kind, payload) values ('other', '{}')`)
	pgtest.Exec(t, conn, "insert into "+pgx.Identifier{schema, "outbox"}.Sanitize()+` (kind, payload) values ('a', '{}')`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil || n.Channel != channelName(schema) {
		t.Fatalf("notification %+v, %v", n, err)
	}
}

func TestWakeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []bool
		w := newWakeState(WakeNotify, WakeNotify, func(h WakeHealth) { changes = append(changes, h.Healthy) })
		var cause error
		w.reset(func(err error) { cause = err })
		w.sent(time.Now())
		if !w.overdue().IsZero() {
			t.Error("a canary is expected before the source is subscribed")
		}
		w.listening()
		w.sent(time.Now())
		w.heard()
		w.sent(time.Now().Add(-time.Second)) // noted after it came back
		time.Sleep(canaryTimeout)
		w.giveUp(time.Now())
		if !w.snapshot().Healthy || cause != nil {
			t.Errorf("after its canary came back: %+v, %v", w.snapshot(), cause)
		}
		w.sent(time.Now())
		time.Sleep(canaryTimeout / 2)
		w.sent(time.Now()) // a second one does not move the deadline
		w.giveUp(time.Now())
		if !w.snapshot().Healthy {
			t.Error("given up too early")
		}
		time.Sleep(canaryTimeout / 2)
		w.giveUp(time.Now())
		if w.snapshot().Healthy || !errors.Is(cause, errNoCanary) {
			t.Errorf("after two seconds of silence: %+v, restarted for %v", w.snapshot(), cause)
		}
		w.triggerSeen("missing", true)
		w.heard()
		if w.snapshot().Healthy {
			t.Error("healthy without a trigger")
		}
		w.triggerSeen(triggerVersion, true)
		w.heard()
		if want := []bool{true, false, false, true}; fmt.Sprint(changes) != fmt.Sprint(want) {
			t.Errorf("changes %v, want %v", changes, want)
		}
	})
}
