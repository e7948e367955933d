package dispatcher

import (
	"context"
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
			return fmt.Errorf("circuit open %v: %v", h.Open, h.Cause)
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

// The publisher that these tests put between loses, delays and forges answers.
type faultyPublisher struct {
	publisher
	spoil func(n int, tasks []Task, results []Result)
	calls int
}

func (f *faultyPublisher) publish(ctx context.Context, tasks []Task, deadline time.Time) []Result {
	results := f.publisher.publish(ctx, tasks, deadline)
	f.calls++
	f.spoil(f.calls, tasks, results)
	return results
}

// startFaulty runs a dispatcher with one worker whose results are spoiled.
func (r *rig) startFaulty(spoil func(n int, tasks []Task, results []Result), change ...func(*Config)) *running {
	d := r.make(append(change, func(c *Config) { c.Workers = 1 })...)
	d.wrap = func(p publisher) publisher { return &faultyPublisher{publisher: p, spoil: spoil} }
	return r.run(d)
}

// Everything was stored, but no acknowledgement came back: the tasks are sent
// again under the same ids, and the stream keeps one of each.
func TestLostAcksAreNotAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(100)
	r.startFaulty(func(n int, _ []Task, results []Result) {
		if n <= 3 {
			for i := range results {
				results[i] = Result{Outcome: Unavailable, Err: errAckLate}
			}
		}
	})
	r.awaitAll(100)
	if n := see(r.observer, func(w *watcher) int { return w.odd }); n > 0 {
		t.Errorf("%d duplicates are called unexplained after lost answers", n)
	}
}

// Some answers of a claim are lost: what was answered is settled, the others are
// sent again.
func TestPartlyLostAcks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(100)
	r.startFaulty(func(n int, _ []Task, results []Result) {
		if n == 2 {
			for i := range results {
				if i%3 == 0 {
					results[i] = Result{Outcome: Unavailable, Err: errAckLate}
				}
			}
		}
	})
	r.awaitAll(100)
}

func TestRefusedTasksAreRetriedThenDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into outbox (kind, payload) values ('bad', '{}'), ('good', '{}'), ('shaky', '{}')`)
	r.startFaulty(func(_ int, tasks []Task, results []Result) {
		for i, task := range tasks {
			if task.Kind == "bad" || task.Kind == "shaky" && task.Attempt < 3 {
				results[i] = Result{Outcome: Refused, Err: fmt.Errorf("no, not %s", task.Kind)}
			}
		}
	}, func(c *Config) { c.MaxAttempts = 4 })
	r.awaitSettled()
	for kind, want := range map[string]string{
		"bad":   "4 true no, not bad",
		"good":  "1 false ",
		"shaky": "3 false no, not shaky",
	} {
		got := query[string](r, `select format('%s %s %s', attempts, (dead_at is not null)::text, last_error) from outbox where kind = $1`, kind)
		if got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
	if n := see(r.observer, func(w *watcher) int { return w.dead }); n != 1 {
		t.Errorf("the observer saw %d dead letters, want 1", n)
	}
}

// The head of the queue never gets an answer. Each probe must take another
// task, or the circuit would stay open for ever.
func TestSilentTaskDoesNotKeepTheCircuitOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insert("silent", `{}`)
	r.insertMany(20)
	r.startFaulty(func(_ int, tasks []Task, results []Result) {
		for i, task := range tasks {
			if task.Kind == "silent" {
				results[i] = Result{Outcome: Unavailable, Err: errAckLate}
			}
		}
	})
	eventually(t, "the others are sent", func() error {
		if n := query[int](r, `select count(*) from outbox where sent_at is null and kind <> 'silent'`); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	if got := query[string](r, `select attempts || ' ' || (dead_at is null)::text from outbox where kind = 'silent'`); got != "0 true" {
		t.Errorf("the silent task: %q, want no attempt counted and not dead", got)
	}
}

func TestUnexplainedDuplicateIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(1)
	d := r.make()
	d.wrap = func(p publisher) publisher {
		return &faultyPublisher{publisher: p, spoil: func(_ int, _ []Task, results []Result) {
			// As if this process had run for long.
			d.explains.mu.Lock()
			d.explains.until = time.Time{}
			d.explains.mu.Unlock()
			results[0].Outcome = Duplicate
		}}
	}
	r.run(d)
	r.awaitSettled()
	eventually(t, "it is reported", func() error {
		if see(r.observer, func(w *watcher) int { return w.odd }) != 1 {
			return errors.New("not reported")
		}
		return nil
	})
}

// A dispatcher that was frozen beyond its deadline must not publish: others have
// sent the tasks meanwhile.
func TestNothingIsPublishedAfterTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.config()
	cfg.NATS = r.connect()
	cfg.Pool = r.pool()
	cfg = cfg.withDefaults()
	js, err := newJetStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := newNATSPublisher(cfg, js, "s", &streams{js: js, prefix: "outbox"})
	results := p.publish(t.Context(), []Task{{ID: 1, Kind: "a", CreatedAt: time.Now()}}, time.Now().Add(-time.Millisecond))
	if !errors.Is(results[0].Err, errTooLate) || results[0].Outcome != Unavailable {
		t.Errorf("got %+v", results[0])
	}
	if n := len(r.stored()); n > 0 {
		t.Errorf("%d messages stored", n)
	}
}
