package dispatcher

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func circuitIs(d *running, open bool) func() error {
	return func() error {
		if h := d.Health().Circuit; h.Open != open {
			return fmt.Errorf("circuit: %+v", h)
		}
		return nil
	}
}

// awaitAll waits for all tasks and checks that no attempt was counted but the
// one that succeeded, and that the stream has each task once.
func (r *rig) awaitAll(tasks int) {
	r.t.Helper()
	r.awaitSettled()
	if n := query[int](r, `select count(*) from outbox where sent_at is null or attempts <> 1`); n > 0 {
		r.t.Errorf("%d tasks not sent with exactly one counted attempt", n)
	}
	ids := r.storedIDs()
	if len(ids) != tasks {
		r.t.Errorf("%d different tasks stored, want %d", len(ids), tasks)
	}
	for id, n := range ids {
		if n != 1 {
			r.t.Errorf("task %d is stored %d times", id, n)
		}
	}
}

func TestBrokerOutageUnderLoad(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Listening(t))
	r.createStream(jetstream.StreamConfig{})
	d := r.start(func(c *Config) { c.Batch, c.MaxAttempts = 50, 1 })
	eventually(t, "the circuit closes", circuitIs(d, false))
	total := 0
	add := func() { r.insertMany(100); total += 100 }
	for range 3 {
		add()
		r.nats.Kill(t)
		for range 5 {
			add()
		}
		eventually(t, "the circuit opens", circuitIs(d, true))
		add()
		r.nats.Restart(t)
		eventually(t, "the circuit closes", circuitIs(d, false))
		r.awaitSettled()
	}
	r.awaitAll(total)
}

// While the broker is away nothing is claimed: an outage must not write dead row
// versions.
func TestNoClaimsWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Listening(t))
	r.createStream(jetstream.StreamConfig{})
	d := r.start()
	eventually(t, "the circuit closes", circuitIs(d, false))
	eventually(t, "the dispatcher listens", healthyWake(d))
	r.nats.Kill(t)
	eventually(t, "the circuit opens", circuitIs(d, true))
	before := see(r.observer, func(w *watcher) int { return w.claimed })
	for range 50 {
		r.insert("k", `{}`)
	}
	// Every insert woke the loop; once it has seen this many wakes it had
	// every occasion to claim.
	eventually(t, "the wakes arrive", func() error {
		if n := see(r.observer, func(w *watcher) int { return w.wakes["notify"] }); n < 2 {
			return fmt.Errorf("%d wakes", n)
		}
		return nil
	})
	if n := see(r.observer, func(w *watcher) int { return w.claimed }) - before; n > 0 {
		t.Errorf("%d tasks claimed while the broker was away", n)
	}
	if n := query[int](r, `select count(*) from outbox where attempts > 0 or xmax::text <> '0'`); n > 0 {
		t.Errorf("%d rows were touched", n)
	}
	r.nats.Restart(t)
	r.awaitAll(50)
}

// A frozen broker stops reading: writes to it block. The dispatcher must say so,
// stop when told, and go on when the broker does.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Listening(t))
	r.createStream(jetstream.StreamConfig{})
	d := r.start(func(c *Config) { c.PublishTimeout = time.Second })
	eventually(t, "the circuit closes", circuitIs(d, false))
	r.nats.Freeze(t)
	r.exec(`insert into outbox (kind, body) select 'large', convert_to(repeat('x', 900000), 'UTF8') from generate_series(1, 30)`)
	eventually(t, "the circuit opens", circuitIs(d, true))
	d.halt()
	r.start()
	r.nats.Thaw(t)
	r.awaitAll(30)
}

func TestBrokerMissingAtStart(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Listening(t))
	r.createStream(jetstream.StreamConfig{})
	r.nats.Stop(t)
	nc, err := nats.Connect(r.nats.URL(), NATSOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	r.insertMany(10)
	d := r.start(func(c *Config) { c.NATS = nc })
	if d.Health().Ready() {
		t.Error("ready without a broker")
	}
	eventually(t, "it runs", func() error {
		if !d.Health().Running {
			return errors.New("not running")
		}
		return nil
	})
	r.nats.Restart(t)
	r.awaitAll(10)
	if !d.Health().Ready() {
		t.Errorf("not ready: %+v", d.Health())
	}
}

// A stream that does not exist yet is an outage for everybody, not the fault of
// the tasks.
func TestStreamMissingAtStart(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.insertMany(10)
	d := r.start(func(c *Config) { c.MaxAttempts = 1 })
	eventually(t, "it says that the stream is missing", func() error {
		h := d.Health()
		for _, f := range h.Stream {
			if f.Check == "exists" && f.Severity == SeverityError && !h.Ready() {
				return nil
			}
		}
		return fmt.Errorf("%+v", h)
	})
	r.createStream(jetstream.StreamConfig{})
	r.awaitAll(10)
}

// The stream goes away while tasks come, and comes back.
func TestStreamDeletedAndCreated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start(func(c *Config) { c.MaxAttempts = 1 })
	r.insertMany(10)
	r.awaitSettled()
	if err := r.js.DeleteStream(t.Context(), "OUTBOX"); err != nil {
		t.Fatal(err)
	}
	r.insertMany(10)
	eventually(t, "the circuit opens", circuitIs(d, true))
	r.createStream(jetstream.StreamConfig{})
	r.awaitSettled()
	if n := query[int](r, `select count(*) from outbox where sent_at is null`); n > 0 {
		t.Errorf("%d tasks are dead", n)
	}
	if n := len(r.storedIDs()); n != 10 {
		t.Errorf("%d tasks in the new stream, want 10", n)
	}
}

// A stream that never acknowledges is refused before tasks are resent for ever.
func TestStreamWithoutAcksGetsNothing(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{NoAck: true})
	r.insertMany(10)
	d := r.start()
	eventually(t, "it says so", func() error {
		h := d.Health()
		for _, f := range h.Stream {
			if f.Check == "no-ack" && !h.Ready() {
				return nil
			}
		}
		return fmt.Errorf("%+v", h)
	})
	if n := see(r.observer, func(w *watcher) int { return w.claimed }); n > 0 {
		t.Errorf("%d tasks claimed", n)
	}
	if n := len(r.stored()); n > 0 {
		t.Errorf("%d messages stored", n)
	}
}

func TestDatabaseRestart(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{})
	r := newRig(t)
	r.dsn = server.DSN("postgres")
	pgtest.Migrate(t, r.dsn, "public")
	d := r.start(func(c *Config) { c.Batch = 20 })
	total := 0
	for range 3 {
		r.db = pgtest.Connect(t, r.dsn)
		r.insertMany(200)
		total += 200
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.db = pgtest.Connect(t, r.dsn)
	r.awaitSettled()
	eventually(t, "wakes arrive again", healthyWake(d))
	r.insert("after", `{}`)
	total++
	r.awaitAll(total)
}

// Listener and claimers are killed at random, again and again: everything is
// sent, nothing pays an attempt, nothing leaks.
func TestBackendsKilledAtRandom(t *testing.T) {
	r := newRig(t)
	d := r.start(func(c *Config) { c.Batch, c.PollInterval = 20, 20*time.Millisecond })
	eventually(t, "the dispatcher listens", healthyWake(d))
	killer := pgtest.Connect(t, r.dsn)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before := runtime.NumGoroutine()
	total, killed := 0, 0
	for killed < 200 {
		r.insertMany(20)
		total += 20
		// While these are claimed, published and settled.
		rows, err := killer.Query(t.Context(), `select pid from pg_stat_activity
			where datname = current_database() and backend_type = 'client backend' and pid <> all($1)`,
			[]uint32{r.db.PgConn().PID(), killer.PgConn().PID()})
		if err != nil {
			t.Fatal(err)
		}
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) > 0 {
			var ok bool
			if err := killer.QueryRow(t.Context(), `select pg_terminate_backend($1)`, pids[random.IntN(len(pids))]).Scan(&ok); err != nil {
				t.Fatal(err)
			}
			if ok {
				killed++
			}
		}
		r.awaitSettled()
	}
	eventually(t, "wakes arrive again", healthyWake(d))
	r.awaitAll(total)
	eventually(t, "no goroutine is left over", func() error {
		if n := runtime.NumGoroutine(); n > before+10 {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
	if n := query[int](r, `select count(*) from pg_stat_activity where datname = current_database()`); n > 13 {
		t.Errorf("%d connections", n)
	}
}
