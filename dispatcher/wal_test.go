package dispatcher

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// newWALRig is newRig with a publication in place of the trigger.
func newWALRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.migrate(outbox.WakeWAL)
	return r
}

// newRigOn is newWALRig in an empty database.
func newRigOn(t *testing.T, dsn string) *rig {
	t.Helper()
	broker := natstest.Start(t)
	r := &rig{t: t, dsn: dsn, db: pgtest.Connect(t, dsn), nats: broker, js: broker.JetStream(t), observer: newWatcher()}
	r.createStream(jetstream.StreamConfig{})
	r.migrate(outbox.WakeWAL)
	return r
}

func (r *rig) migrate(wake outbox.Wake) {
	r.t.Helper()
	if _, err := outbox.Migrate(r.t.Context(), r.db, outbox.MigrateOptions{Wake: wake}); err != nil {
		r.t.Fatal(err)
	}
}

// slots counts the replication slots of the database.
func (r *rig) slots() int {
	r.t.Helper()
	return query[int](r, `select count(*) from pg_replication_slots where database = current_database()`)
}

func followsWAL(c *Config) { c.Wake = WakeWAL }

// With a sweep every ten minutes, nothing but wakes explains that tasks leave: single
// ones, and many at once.
func TestWALWake(t *testing.T) {
	t.Parallel()
	r := newWALRig(t)
	d := r.start(followsWAL)
	eventually(t, "wakes arrive", healthyWake(d))
	for n := range 5 {
		r.insert(fmt.Sprint("single", n), `{}`)
		r.awaitSettled()
	}
	eventually(t, "wakes are counted", r.woken("wal", 5))
	r.exec(`insert into outbox (kind, payload) select 'many', '{}' from generate_series(1, 5000)`)
	r.awaitSettled()
	if n := see(r.observer, func(w *watcher) int { return w.wakes["notify"] }); n > 0 {
		t.Errorf("%d wakes by notification", n)
	}
	d.halt()
	if n := r.slots(); n > 0 {
		t.Errorf("%d slots are left", n)
	}
}

// Inserts that no trigger sees, or that may not notify, wake too.
func TestWALWakeBySpecialInserts(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "5"}})
	r := newRigOn(t, server.DSN("postgres"))
	d := r.start(followsWAL)
	eventually(t, "wakes arrive", healthyWake(d))
	for name, sql := range map[string]string{
		"prepared":    `begin; insert into outbox (kind, payload) values ('a', '{}'); prepare transaction 'p'; commit prepared 'p'`,
		"replica":     `set session_replication_role = replica; insert into outbox (kind, payload) values ('a', '{}'); reset session_replication_role`,
		"savepoint":   `begin; savepoint s; insert into outbox (kind, payload) values ('a', '{}'); release s; commit`,
		"rolled back": `begin; savepoint s; insert into outbox (kind, payload) values ('a', '{}'); rollback to s; insert into outbox (kind, payload) values ('a', '{}'); commit`,
	} {
		before := see(r.observer, func(w *watcher) int { return w.wakes["wal"] })
		for statement := range strings.SplitSeq(sql, "; ") {
			r.exec(statement)
		}
		eventually(t, name+" wakes", r.woken("wal", before+1))
		r.awaitSettled()
	}
}

// While the slot waits for an old transaction, tasks leave by polling, and the health
// says what is waited for.
func TestWALWakeBehindALongWriter(t *testing.T) {
	t.Parallel()
	r := newWALRig(t)
	writer := pgtest.Connect(t, r.dsn)
	pgtest.Exec(t, writer, `begin`)
	pgtest.Exec(t, writer, `create temporary table written (n int)`)
	d := r.start(followsWAL, func(c *Config) { c.PollInterval = 20 * time.Millisecond })
	eventually(t, "it is told what is waited for", wakeIs(d, false, "replication slot waits"))
	r.insert("polled", `{}`)
	r.awaitSettled()
	if !d.Health().Ready() {
		t.Errorf("not ready, though tasks flow: %+v", d.Health())
	}
	pgtest.Exec(t, writer, `commit`)
	eventually(t, "wakes arrive", healthyWake(d))
}

// What the source lacks is told in one line, tasks leave by polling, and the cure is
// noticed.
func TestWALWakeWithoutItsPublication(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start(followsWAL, func(c *Config) { c.SweepInterval, c.PollInterval = 100*time.Millisecond, 20*time.Millisecond })
	eventually(t, "it is told", wakeIs(d, false, "there is no publication"))
	r.insert("polled", `{}`)
	r.awaitSettled()
	r.migrate(outbox.WakeWAL)
	eventually(t, "wakes arrive", healthyWake(d))
	r.exec(`alter publication ` + channelName("public") + ` set (publish = 'delete')`)
	eventually(t, "it is noticed that no inserts are published", wakeIs(d, false, "publishes no inserts"))
	r.insert("polled-again", `{}`)
	r.awaitSettled()
	r.migrate(outbox.WakeWAL)
	eventually(t, "wakes arrive again", healthyWake(d))
	r.migrate(outbox.WakePoll)
	eventually(t, "it is noticed that the publication is gone", wakeIs(d, false, "there is no publication"))
}

// A server that does not decode its log is polled, and one line says why.
func TestWALWakeWithoutLogicalDecoding(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{Settings: map[string]string{"wal_level": "replica"}})
	r := newRigOn(t, server.DSN("postgres"))
	log := &logText{}
	d := r.start(followsWAL, func(c *Config) {
		c.PollInterval, c.Logger = 20*time.Millisecond, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	eventually(t, "it is told", wakeIs(d, false, "set wal_level = logical"))
	r.insert("polled", `{}`)
	r.awaitSettled()
	eventually(t, "it was tried again", func() error {
		if n := log.count("retry_in="); n < 3 {
			return fmt.Errorf("%d tries", n)
		}
		return nil
	})
	// One that the source is lost, and one that wakes do not arrive.
	if lost, polling := log.count("level=WARN msg=\"wake source lost"), log.count("level=WARN msg=\"wakes do not arrive"); lost != 1 || polling != 1 {
		t.Errorf("%d and %d warnings about it", lost, polling)
	}
}

// logText is what was logged.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}
