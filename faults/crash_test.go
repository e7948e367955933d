package faults

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// The playbook's first check: the process is killed right after the producer's
// commit, and the task is sent on restart.
func TestKilledRightAfterCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 10 {
		d := r.start()
		eventually(t, "it listens", func() error {
			if n := r.count(`select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'`); n == 0 {
				return fmt.Errorf("no listener")
			}
			return nil
		})
		r.exec(`insert into outbox (kind, payload) values ('k', jsonb_build_object('n', $1::int))`, i)
		d.kill()
	}
	r.start()
	r.awaitSent()
	r.checkStored()
}

// The process is killed at each step of a claim of 41 tasks, one of them too large
// to publish. Nothing may be lost, and a task may be published twice only if its
// first publish was not followed by a commit.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	const good = 40
	for _, tt := range []struct {
		point  string
		lo, hi int // publishes before the end
	}{
		// The first claim is the probe's, of one task; the second takes the rest.
		{"after-claim#1", 1, 1},
		{"after-first-publish#2", 1, 2},
		{"after-some-acks#2", good, good},
		{"before-undo#1", good, good},
		{"after-undo#1", good, good},
		{"before-commit#2", good, good},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(`insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, $1::int)`, good/2)
			r.exec(`insert into outbox (kind, body) values ('big', convert_to(repeat('x', 2000000), 'UTF8'))`)
			r.exec(`insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, $1::int)`, good/2)
			d := r.start("OUTBOX_FAILPOINT=" + tt.point)
			if s := d.await(); !s.Signaled() || s.Signal() != syscall.SIGKILL {
				t.Fatalf("the failpoint was not reached: %v", s)
			}
			eventually(t, "the publishes are counted", func() error {
				if n, _ := r.publishes(); n < tt.lo || n > tt.hi {
					return fmt.Errorf("%d published before the end, want %d to %d", n, tt.lo, tt.hi)
				}
				return nil
			})
			before, _ := r.publishes()
			// The probe's task is settled; no other task may count as sent.
			if n := r.count(`select count(*) from outbox where sent_at is not null`); n != 1 {
				t.Errorf("%d tasks count as sent after the end, want the probe's alone", n)
			}
			r.start()
			r.awaitSent()
			r.checkStored()
			r.awaitPublishes(good+before-1, before-1)
			if n := r.count(`select count(*) from outbox where kind = 'big' and dead_at is not null and attempts = 1`); n != 1 {
				t.Error("the large task is not a dead letter of one attempt")
			}
			if n := r.count(`select count(*) from outbox where kind = 'k' and attempts <> 1`); n > 0 {
				t.Errorf("%d tasks paid an attempt for the crash", n)
			}
		})
	}
}

// COMMIT reached the server, its answer did not come back: the tasks are sent,
// and are not sent again.
func TestKilledBeforeTheAnswerToCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	direct, err := pgx.ParseConfig(r.dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(fmt.Sprintf("%s/.s.PGSQL.%d", direct.Host, direct.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	dsn := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: proxy.Addr(), Path: direct.Database, RawQuery: "sslmode=disable"}

	const tasks = 50
	r.exec(`insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, $1::int)`, tasks)
	var d *daemon
	var once sync.Once
	ready := make(chan struct{})
	var answers atomic.Int32
	// CommandComplete, as the server sends it.
	proxy.Before(faultproxy.ToClient, append([]byte("C\x00\x00\x00\x0bCOMMIT"), 0), func(c *faultproxy.Conn) {
		<-ready
		if answers.Add(1) < 2 { // the probe's
			return
		}
		once.Do(func() { _ = d.cmd.Process.Kill() })
		c.Cut()
	})
	d = r.start("DATABASE_URL=" + dsn.String())
	close(ready)
	if s := d.await(); !s.Signaled() {
		t.Fatalf("not killed: %v", s)
	}
	if n := r.count(`select count(*) from outbox where sent_at is null`); n != 0 {
		t.Errorf("%d tasks are not marked as sent: the COMMIT did not get through, and the test proves nothing", n)
	}
	r.start()
	r.exec(`insert into outbox (kind, payload) values ('after', '{}')`)
	r.awaitSent()
	r.checkStored()
	r.awaitPublishes(tasks+1, 0)
}

// Processes are killed and frozen at random while tasks come. The stream keeps
// one of each.
func TestDispatchersKilledAndFrozenAtRandom(t *testing.T) {
	t.Parallel()
	const tasks, each = 6000, 50
	r := newRig(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	env := []string{"OUTBOX_BATCH=25", "OUTBOX_PUBLISH_TIMEOUT=500ms", "OUTBOX_POLL_INTERVAL=50ms"}
	daemons := []*daemon{r.start(env...), r.start(env...), r.start(env...)}
	for range tasks / each {
		r.exec(`insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, $1::int)`, each)
		i := random.IntN(len(daemons))
		switch random.IntN(6) {
		case 0:
			daemons[i].kill()
			daemons[i] = r.start(env...)
		case 1:
			daemons[i].signal(syscall.SIGSTOP)
			// Long enough for the server to give its rows to another, or not.
			frozen := time.Duration(random.IntN(1500)) * time.Millisecond
			d := daemons[i]
			time.AfterFunc(frozen, func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) })
		}
	}
	r.awaitSent()
	for _, d := range daemons {
		_ = d.cmd.Process.Signal(syscall.SIGCONT)
		d.signal(syscall.SIGTERM)
		if s := d.await(); s.ExitStatus() != 0 {
			t.Errorf("exit %d after SIGTERM", s.ExitStatus())
		}
	}
	if n := r.count(`select count(*) from outbox where attempts <> 1 or sent_at is null`); n > 0 {
		t.Errorf("%d tasks not sent with exactly one attempt", n)
	}
	r.checkStored()
	total, repeated := r.publishes()
	t.Logf("%d tasks, %d publishes, %d repeated and dropped by the stream", tasks, total, repeated)
}

// Two and five processes share 20,000 tasks; none is published by two.
func TestProcessesShareTheWork(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 5} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			const tasks = 20_000
			r := newRig(t)
			producer := pgtest.Connect(t, r.dsn)
			for range n {
				r.start("OUTBOX_BATCH=100")
			}
			for range 20 {
				if _, err := producer.Exec(t.Context(), `insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, $1::int)`, tasks/20); err != nil {
					t.Fatal(err)
				}
			}
			r.awaitSent()
			r.checkStored()
			r.awaitPublishes(tasks, 0)
		})
	}
}

// A stop under load leaves nothing half done.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	total := 0
	for range 10 {
		r.exec(`insert into outbox (kind, payload) select 'k', '{}' from generate_series(1, 2000)`)
		total += 2000
		d := r.start("OUTBOX_BATCH=50")
		eventually(t, "some are sent", func() error {
			if n, _ := r.publishes(); n < total-1900 {
				return fmt.Errorf("%d published", n)
			}
			return nil
		})
		d.signal(syscall.SIGTERM)
		if s := d.await(); !s.Exited() || s.ExitStatus() != 0 {
			t.Fatalf("exit %v after SIGTERM", s)
		}
	}
	r.start()
	r.awaitSent()
	r.checkStored()
	r.awaitPublishes(total, 0)
}
