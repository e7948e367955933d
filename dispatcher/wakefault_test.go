package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// wakeIs returns a check of the wake's health and of what it says.
func wakeIs(d *running, healthy bool, detail string) func() error {
	return func() error {
		if h := d.Health().Wake; h.Healthy != healthy || !strings.Contains(h.Detail, detail) || (detail == "") != (h.Detail == "") {
			return fmt.Errorf("health %+v, want healthy %t, detail %q", h, healthy, detail)
		}
		return nil
	}
}

// Whatever became of the insert trigger, the tasks leave, the health says what is
// wrong and how to repair it, and the repair is noticed.
func TestFaultyTrigger(t *testing.T) {
	t.Parallel()
	older := func(version string) string {
		text, err := os.ReadFile("../testdata/trigger_" + version + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, c := range map[string]struct {
		fault   string
		healthy bool
		detail  string
	}{
		"missing":  {`drop trigger outbox_notify on outbox`, false, "is missing: run 'dispatcher migrate up'"},
		"disabled": {`alter table outbox disable trigger outbox_notify`, false, "is disabled: run 'dispatcher migrate up'"},
		"v1":       {older("v1"), true, "of an older version and notifies under load"},
		"v2":       {older("v2"), true, "of an older version, with which each INSERT costs more"},
		"unknown": {`create or replace trigger outbox_notify after insert on outbox
			for each statement execute function outbox_notify('v9')`, false, "does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(c.fault)
			d := r.start(func(cfg *Config) {
				if c.healthy {
					cfg.SweepInterval = 100 * time.Millisecond // to notice the repair
				}
			})
			eventually(t, "the fault is noticed", wakeIs(d, c.healthy, c.detail))
			if !d.Health().Ready() {
				t.Errorf("not ready, though tasks flow: %+v", d.Health())
			}
			r.insert("a", `{}`)
			r.awaitSettled()
			if c.healthy {
				eventually(t, "the trigger wakes", r.woken("notify", 1))
			} else if n := see(r.observer, func(w *watcher) int { return w.wakes["poll"] }); n == 0 {
				t.Error("no fast look, though wakes do not arrive")
			}
			r.exec(outbox.TriggerSQL)
			eventually(t, "the repair is noticed", wakeIs(d, true, ""))
			r.awaitTriggerWake()
		})
	}
}

// awaitTriggerWake inserts until the trigger wakes. Polling masks it, which may go on
// for a moment after load, the longer the slower the machine.
func (r *rig) awaitTriggerWake() {
	r.t.Helper()
	woken := r.woken("notify", see(r.observer, func(w *watcher) int { return w.wakes["notify"] })+1)
	eventually(r.t, "the trigger wakes", func() error {
		if query[int64](r, `select last_value from outbox_mask`) == 0 {
			r.insert("b", `{}`)
		}
		return woken()
	})
}

// woken returns a check for n wakes of a source.
func (r *rig) woken(source string, n int) func() error {
	return func() error {
		if got := see(r.observer, func(w *watcher) int { return w.wakes[source] }); got < n {
			return fmt.Errorf("%d wakes of %s, want %d", got, source, n)
		}
		return nil
	}
}

// A listening connection that leads nowhere is found by itself, between two looks
// at the table that are ten minutes apart, and without a statement.
func TestHalfOpenListenConnectionBetweenSweeps(t *testing.T) {
	t.Parallel()
	const listeners = ` from pg_stat_activity where datname = current_database() and query like 'listen %'`
	r := newRig(t)
	proxy, listen := proxied(t, r.dsn)
	// The message Sync.
	var pings atomic.Int32
	proxy.Before(faultproxy.ToServer, []byte{'S', 0, 0, 0, 4}, func(*faultproxy.Conn) { pings.Add(1) })
	d := r.start(func(c *Config) { c.Listen = listen })
	eventually(t, "wakes arrive", wakeIs(d, true, ""))
	begun := query[time.Time](r, `select query_start`+listeners)
	connections, before := proxy.Accepted(), pings.Load()
	eventually(t, "it is asked for signs of life", func() error {
		if n := pings.Load() - before; n < 2 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	if now := query[time.Time](r, `select query_start`+listeners); !now.Equal(begun) {
		t.Errorf("a statement ran at %v on the listening connection, the last before at %v", now, begun)
	}
	if n := proxy.Accepted(); n != connections || !d.Health().Wake.Healthy {
		t.Fatalf("%d connections, %d before; health %+v", n, connections, d.Health().Wake)
	}

	proxy.Stall()
	eventually(t, "the silence is noticed", wakeIs(d, false, "no sign of life"))
	r.insert("polled", `{}`)
	r.awaitSettled()
	proxy.Resume()
	eventually(t, "wakes arrive again", wakeIs(d, true, ""))
	// The connection before was not only given up but closed.
	eventually(t, "one listener is left", func() error {
		if n := query[int](r, `select count(*)`+listeners); n != 1 {
			return fmt.Errorf("%d listeners", n)
		}
		return nil
	})
}

// A notification that arrives together with the answer to a ping is not lost.
func TestNotificationDuringPing(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	proxy, cfg := proxied(t, dsn)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	pgtest.Exec(t, conn, "listen noise")
	producer := pgtest.Connect(t, dsn)
	// Before the ping reaches the server, so that both answers come after it.
	proxy.Before(faultproxy.ToServer, []byte{'S', 0, 0, 0, 4}, func(*faultproxy.Conn) {
		if _, err := producer.Exec(t.Context(), "select pg_notify('noise', 'kept')"); err != nil {
			t.Error(err)
		}
	})
	if err := ping(t.Context(), conn.PgConn()); err != nil {
		t.Fatal(err)
	}
	n, err := await(t.Context(), conn)
	if err != nil || n.Payload != "kept" {
		t.Fatalf("%+v, %v", n, err)
	}
}

// A session of another database can keep everybody from notifying, and so the
// canaries too. Tasks that are visible must leave all the same: those that became
// due, and those of producers that wait for no standby and notify nobody.
func TestBlockedNotifications(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{})
	pgtest.Exec(t, pgtest.Connect(t, server.DSN("postgres")), `create database tasks`)
	dsn := server.DSN("tasks")
	pgtest.Migrate(t, dsn, "public")
	broker := natstest.Start(t)
	r := &rig{t: t, dsn: dsn, db: pgtest.Connect(t, dsn), nats: broker, js: broker.JetStream(t), observer: newWatcher()}
	r.createStream(jetstream.StreamConfig{})
	d := r.start(func(c *Config) { c.SweepInterval = 100 * time.Millisecond })
	eventually(t, "wakes arrive", wakeIs(d, true, ""))
	release := pgtest.BlockNotifications(t, server)

	eventually(t, "the silence is noticed", wakeIs(d, false, "no notification can be sent"))
	r.exec(`set synchronous_commit = local`)
	r.exec(`set session_replication_role = replica`) // no trigger
	r.insert("quiet", `{}`)
	r.exec(`insert into outbox (kind, payload, send_after) values ('later', '{}', clock_timestamp() + interval '300 ms')`)
	r.awaitSettled()
	if h := d.Health(); h.Database != nil || !h.Ready() {
		t.Errorf("tasks flow, but health is %+v", h)
	}
	if err := wakeIs(d, false, "no notification can be sent")(); err != nil {
		t.Error(err)
	}

	release()
	r.exec(`reset session_replication_role`)
	eventually(t, "wakes arrive again", wakeIs(d, true, ""))
	r.awaitTriggerWake()
	r.awaitSettled()
}

// source is a wake source made of a function.
type source func(ctx context.Context, wake func()) error

func (s source) Run(ctx context.Context, wake func()) error { return s(ctx, wake) }

// A source that subscribes and is lost again is connected to more and more
// rarely, unless wakes arrived in between.
func TestSourceBacksOffUntilWakesArrive(t *testing.T) {
	for arrive, limits := range map[bool][2]int{false: {8, 60}, true: {600, 4000}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			d := &Dispatcher{
				log: slog.New(slog.DiscardHandler), wakes: make(wakeSignal, 1), cover: newSignal(),
			}
			state := newWakeState(WakeNotify, WakeNotify, func(WakeHealth) {})
			runs := 0
			d.supervise(ctx, state, source(func(_ context.Context, wake func()) error {
				runs++
				wake()
				if arrive {
					state.heard()
				}
				return errors.New("lost")
			}))
			if runs < limits[0] || runs > limits[1] {
				t.Errorf("%d runs in a minute, want %d to %d; wakes arrive: %t", runs, limits[0], limits[1], arrive)
			}
		})
	}
}
