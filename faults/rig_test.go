package faults

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// patience bounds every wait for an effect.
const patience = 90 * time.Second

// binary is the daemon, built with failpoints.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "outbox-faults-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "dispatcher")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", binary, "../cmd/dispatcher") //nolint:noctx // the tests cannot go on without
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the daemon: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m)
}

// rig is one outbox, one broker, and a count of everything published.
type rig struct {
	t    *testing.T
	dsn  string
	db   *pgx.Conn
	nats *natstest.Server
	js   jetstream.JetStream

	logs []string // of the daemons

	mu        sync.Mutex
	published map[int64]int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dsn: pgtest.NewDB(t), nats: natstest.Listening(t), published: map[int64]int{}}
	r.db = pgtest.Connect(t, r.dsn)
	r.js = r.nats.JetStream(t)
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "OUTBOX", Subjects: []string{"outbox.>"}, Duplicates: 10 * time.Minute,
	}); err != nil {
		t.Fatal(err)
	}
	// A plain subscriber sees every publish, also those that the stream drops.
	nc := r.nats.Connect(t)
	sub, err := nc.Subscribe("outbox.>", func(m *nats.Msg) {
		id, _ := strconv.ParseInt(m.Header.Get(dispatcher.HeaderTaskID), 10, 64)
		r.mu.Lock()
		r.published[id]++
		r.mu.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

// publishes counts publishes, and the tasks published more than once.
func (r *rig) publishes() (total, repeated int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.published {
		total += n
		if n > 1 {
			repeated++
		}
	}
	return total, repeated
}

// awaitPublishes waits for the subscriber to have seen so many publishes, and
// checks how many tasks were published more than once. A machine that stalls
// for seconds loses acknowledgements; what the daemons' logs explain that way
// may be repeated as well.
func (r *rig) awaitPublishes(total, repeated int) {
	r.t.Helper()
	if r.stalled() {
		r.t.Log("acknowledgements were lost on the way: the publishes are not compared")
		return
	}
	eventually(r.t, "the publishes are counted", func() error {
		if n, again := r.publishes(); n != total || again != repeated {
			return fmt.Errorf("%d publishes, %d tasks repeated; want %d and %d", n, again, total, repeated)
		}
		return nil
	})
}

// stalled reports whether a daemon gave up waiting for an acknowledgement.
func (r *rig) stalled() bool {
	r.t.Helper()
	for _, log := range r.logs {
		text, err := os.ReadFile(log)
		if err != nil {
			r.t.Fatal(err)
		}
		if bytes.Contains(text, []byte("no acknowledgement in time")) {
			return true
		}
	}
	return false
}

// daemon is a dispatcher process.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// start runs the daemon with extra variables.
func (r *rig) start(env ...string) *daemon {
	r.t.Helper()
	f, err := os.CreateTemp(r.t.TempDir(), "log")
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	r.logs = append(r.logs, f.Name())
	d := &daemon{t: r.t, done: make(chan struct{}), log: f.Name()}
	d.cmd = exec.Command(binary, "run", "--http=") //nolint:noctx // ended by signal or by the cleanup
	d.cmd.Env = append([]string{"DATABASE_URL=" + r.dsn, "NATS_URL=" + r.nats.URL(), "OUTBOX_LOG_LEVEL=debug"}, env...)
	d.cmd.Stdout, d.cmd.Stderr = f, f
	if err := d.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	r.t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.done
		if r.t.Failed() {
			if text, err := os.ReadFile(d.log); err == nil {
				r.t.Logf("log of the daemon:\n%s", text)
			}
		}
	})
	return d
}

func (d *daemon) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// await waits until the process has ended and returns how.
func (d *daemon) await() syscall.WaitStatus {
	d.t.Helper()
	select {
	case <-d.done:
		return d.cmd.ProcessState.Sys().(syscall.WaitStatus) //nolint:forcetypeassert // always this on Unix
	case <-time.After(patience):
		d.t.Fatal("the daemon did not end")
		panic("unreachable")
	}
}

// kill is kill -9, and returns when the process is gone.
func (d *daemon) kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
	d.await()
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// eventually tries until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
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

// awaitSent waits until no task is left.
func (r *rig) awaitSent() {
	r.t.Helper()
	eventually(r.t, "all tasks are sent or dead", func() error {
		if n := r.count(`select count(*) from outbox where sent_at is null and dead_at is null`); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
}

// checkStored compares the stream with the table: each sent task once, nothing else.
func (r *rig) checkStored() {
	r.t.Helper()
	sent := map[int64]bool{}
	rows, err := r.db.Query(r.t.Context(), `select id from outbox where sent_at is not null`)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		sent[id] = true
	}
	cons, err := r.js.OrderedConsumer(r.t.Context(), "OUTBOX", jetstream.OrderedConsumerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	st, err := r.js.Stream(r.t.Context(), "OUTBOX")
	if err != nil {
		r.t.Fatal(err)
	}
	stored := map[int64]int{}
	for range st.CachedInfo().State.Msgs {
		m, err := cons.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			r.t.Fatal(err)
		}
		id, err := strconv.ParseInt(m.Headers().Get(dispatcher.HeaderTaskID), 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		stored[id]++
	}
	for id, n := range stored {
		if n != 1 {
			r.t.Errorf("duplicate: task %d is stored %d times", id, n)
		}
		if !sent[id] {
			r.t.Errorf("task %d is stored but not marked as sent", id)
		}
	}
	for id := range sent {
		if stored[id] == 0 {
			r.t.Errorf("lost: task %d is marked as sent but not stored", id)
		}
	}
}
