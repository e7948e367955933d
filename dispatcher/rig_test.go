package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patience bounds every wait for an effect. It is never reached when all is
// well, however slow the machine.
const patience = 60 * time.Second

// rig is an outbox of its own, a NATS server of its own, and dispatchers between.
type rig struct {
	t        *testing.T
	dsn      string
	db       *pgx.Conn // the producer
	nats     *natstest.Server
	js       jetstream.JetStream
	observer *watcher
}

// newRig starts a NATS server in process, with a stream for outbox.>, and makes
// a database with an empty outbox.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{})
	return r
}

// newBareRig is newRig without a stream.
func newBareRig(t *testing.T, server *natstest.Server) *rig {
	t.Helper()
	dsn := pgtest.NewDB(t)
	return &rig{t: t, dsn: dsn, db: pgtest.Connect(t, dsn), nats: server, js: server.JetStream(t), observer: newWatcher()}
}

func (r *rig) createStream(cfg jetstream.StreamConfig) {
	r.t.Helper()
	if cfg.Name == "" {
		cfg.Name = "OUTBOX"
	}
	if cfg.Subjects == nil {
		cfg.Subjects = []string{"outbox.>"}
	}
	if _, err := r.js.CreateStream(r.t.Context(), cfg); err != nil {
		r.t.Fatalf("create stream: %v", err)
	}
}

// config is what start uses: looks so rare that only wakes and timers can
// explain that a task leaves soon.
func (r *rig) config() Config {
	return Config{
		SweepInterval: 10 * time.Minute,
		RetryMin:      10 * time.Millisecond, RetryMax: 50 * time.Millisecond,
		Observer: r.observer,
		Logger:   slog.New(slog.NewTextHandler(testWriter{r.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// running is a dispatcher that runs.
type running struct {
	*Dispatcher
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// start runs a dispatcher until the end of the test or its halt.
func (r *rig) start(change ...func(*Config)) *running {
	r.t.Helper()
	d := r.make(change...)
	return r.run(d)
}

func (r *rig) make(change ...func(*Config)) *Dispatcher {
	r.t.Helper()
	cfg := r.config()
	cfg.Pool = r.pool()
	cfg.NATS = r.connect()
	for _, c := range change {
		c(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) run(d *Dispatcher) *running {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	run := &running{Dispatcher: d, t: r.t, stop: stop, done: make(chan error, 1)}
	go func() { run.done <- d.Run(ctx) }()
	r.t.Cleanup(run.halt)
	return run
}

// halt stops the dispatcher and waits for it. A second call does nothing.
func (run *running) halt() {
	run.t.Helper()
	run.stop()
	select {
	case err := <-run.done:
		if err != nil {
			run.t.Errorf("Run: %v", err)
		}
		run.done <- nil
	case <-time.After(patience):
		run.t.Fatal("Run did not return after a stop")
	}
}

func (r *rig) pool() *pgxpool.Pool {
	r.t.Helper()
	cfg, err := pgxpool.ParseConfig(r.dsn)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.MaxConns = 10
	TunePool(cfg)
	pool, err := pgxpool.NewWithConfig(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(pool.Close)
	return pool
}

func (r *rig) connect() *nats.Conn {
	r.t.Helper()
	return r.nats.Connect(r.t, NATSOptions()...)
}

// exec runs a statement as the producer.
func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// insert commits one task and returns its id.
func (r *rig) insert(kind, payload string) int64 {
	r.t.Helper()
	return query[int64](r, `insert into outbox (kind, payload) values ($1, $2) returning id`, kind, payload)
}

// insertMany commits n tasks in one statement.
func (r *rig) insertMany(n int) {
	r.t.Helper()
	r.exec(`insert into outbox (kind, payload) select 'bulk', jsonb_build_object('n', g) from generate_series(1, $1::int) g`, n)
}

// query reads one value.
func query[T any](r *rig, sql string, args ...any) (v T) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// stored reads the whole stream, in order.
func (r *rig) stored() []*jetstream.RawStreamMsg {
	r.t.Helper()
	st, err := r.js.Stream(r.t.Context(), "OUTBOX")
	if err != nil {
		r.t.Fatal(err)
	}
	info := st.CachedInfo().State
	var all []*jetstream.RawStreamMsg
	for seq := info.FirstSeq; seq <= info.LastSeq && info.Msgs > 0; seq++ {
		m, err := st.GetMsg(r.t.Context(), seq)
		if err != nil {
			r.t.Fatalf("message %d: %v", seq, err)
		}
		all = append(all, m)
	}
	return all
}

// storedIDs counts the task ids in the stream.
func (r *rig) storedIDs() map[int64]int {
	r.t.Helper()
	ids := map[int64]int{}
	for _, m := range r.stored() {
		id, err := strconv.ParseInt(m.Header.Get(HeaderTaskID), 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		ids[id]++
	}
	return ids
}

// awaitSettled waits until every task is sent or dead.
func (r *rig) awaitSettled() {
	r.t.Helper()
	eventually(r.t, "all tasks are settled", func() error {
		if n := query[int](r, `select count(*) from outbox where sent_at is null and dead_at is null`); n > 0 {
			return fmt.Errorf("%d tasks are not", n)
		}
		return nil
	})
}

// eventually tries until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
	}
}

// testWriter sends the dispatcher's log to the test's.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	// The log may outlive the test by a moment.
	if w.t.Context().Err() == nil {
		w.t.Log(string(p[:max(len(p)-1, 0)]))
	}
	return len(p), nil
}

// noLeaks checks at the end of the test that no goroutine is left that the test
// started. Not for parallel tests.
func noLeaks(t *testing.T) {
	t.Helper()
	pgtest.Server(t) // outlives the test
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
