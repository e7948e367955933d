package dispatcher

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

var walBytes = flag.Int64("wal-bytes", 64<<20, "how much unrelated WAL `bytes` TestReplicationReleasesTheLog writes")

// serverRig is a migrated database on a server of its own.
func serverRig(t *testing.T, settings map[string]string) (*rig, *pgserver.Server) {
	t.Helper()
	server := pgtest.OwnServer(t, pgserver.Options{Settings: settings})
	dsn := server.DSN("postgres")
	pgtest.Migrate(t, dsn, "public")
	return &rig{t: t, dsn: dsn, db: pgtest.Connect(t, dsn)}, server
}

// Whenever the server's process is killed, the source comes back by itself, and
// each insert is followed by a wake.
func TestReplicationKilledAtRandom(t *testing.T) {
	t.Parallel()
	const kills = 200
	r, _ := dbRig(t)
	victim := pgtest.Connect(t, r.dsn)
	replicated := replication(r)
	var lost atomic.Int64
	run := runSource(t, source(func(ctx context.Context, wake func()) error {
		for ctx.Err() == nil {
			if err := replicated.Run(ctx, wake); err != nil {
				lost.Add(1)
			}
		}
		return nil
	}))
	run.await("when subscribed")
	for n := range kills {
		_, err := victim.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and application_name like 'outbox_wake_%'`)
		if err != nil {
			t.Fatal(err)
		}
		for range rand.IntN(3) {
			r.insert("a", `1`)
		}
		r.insert("last", `1`)
		for left := 1; left > 0; {
			run.await(fmt.Sprintf("after kill %d", n))
			r.exec(`delete from outbox`)
			left = query[int](r, `select count(*) from outbox`)
		}
		for len(run.wakes) > 0 {
			<-run.wakes
		}
	}
	if err := run.stop(); err != nil {
		t.Error(err)
	}
	if n := lost.Load(); n < kills/2 {
		t.Errorf("the source was lost %d times in %d kills", n, kills)
	}
	eventually(t, "no slot is left", noSlot(r))
}

// noSlot returns a check that the database has no slot and no walsender.
func noSlot(r *rig) func() error {
	return func() error {
		if n := query[int](r, `select (select count(*) from pg_replication_slots where database = current_database()) +
			(select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'walsender')`); n > 0 {
			return fmt.Errorf("%d slots and walsenders", n)
		}
		return nil
	}
}

// A server that wants to hear from us every second does, idle or busy.
func TestReplicationWithShortTimeout(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, map[string]string{"wal_sender_timeout": "1s"})
	run := runSource(t, replication(r))
	run.await("when subscribed")
	pid := query[int](r, `select active_pid from pg_replication_slots`)
	age := func() time.Duration {
		return time.Duration(query[float64](r, `select extract(epoch from clock_timestamp() - backend_start)::float8 from pg_stat_activity where pid = $1`, pid) * float64(time.Second))
	}
	eventually(t, "it was idle for four seconds", func() error {
		if a := age(); a < 4*time.Second {
			return fmt.Errorf("for %v", a)
		}
		return nil
	})
	for age() < 8*time.Second {
		r.insertMany(100)
		run.await("for an insert")
	}
	if now := query[int](r, `select active_pid from pg_replication_slots`); now != pid {
		t.Errorf("process %d serves, it was %d", now, pid)
	}
	if err := run.stop(); err != nil {
		t.Error(err)
	}
}

// A slot that does not move keeps the log on the server's disk. Ours moves with
// everybody's log, and what is read costs no memory.
func TestReplicationReleasesTheLog(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, map[string]string{"max_wal_size": "200MB"})
	run := runSource(t, replication(r))
	run.await("when subscribed")
	r.exec(`create table unrelated (n bigint, filler text)`)
	const lag = `select pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::int8 from pg_replication_slots`
	start := query[string](r, `select pg_current_wal_lsn()::text`)
	pid := query[int](r, `select active_pid from pg_replication_slots`)
	for written := int64(0); written < *walBytes; {
		r.exec(`insert into unrelated select g, repeat('x', 1000) from generate_series(1, 8000) g`)
		r.exec(`truncate unrelated`)
		written = query[int64](r, `select pg_wal_lsn_diff(pg_current_wal_lsn(), $1::text::pg_lsn)::int8`, start)
	}
	for _, position := range []string{"confirmed_flush_lsn", "restart_lsn"} {
		eventually(t, position+" follows", func() error {
			r.exec(`checkpoint`) // logs what runs, which the slot needs to move on
			if n := query[int64](r, fmt.Sprintf(lag, position)); n > 1<<20 {
				return fmt.Errorf("%d bytes behind", n)
			}
			return nil
		})
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 64<<20 {
		t.Errorf("%d bytes on the heap", m.HeapAlloc)
	}
	if now := query[int](r, `select active_pid from pg_replication_slots`); now != pid {
		t.Errorf("process %d serves, it was %d", now, pid)
	}
	r.insert("a", `1`)
	run.await("for an insert")
}

// While a transaction that writes is open there is no slot. That is told, a stop
// leaves nothing behind, and limits that the database sets do not end the wait.
func TestReplicationWaitsForWriters(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, nil)
	r.exec(`alter database postgres set lock_timeout = '100ms'`)
	r.exec(`alter database postgres set statement_timeout = '2s'`)
	r.exec(`alter database postgres set idle_session_timeout = '1s'`)
	writer := pgtest.Connect(t, r.dsn+"&idle_session_timeout=0")
	pgtest.Exec(t, writer, `begin; select pg_current_xact_id()`)
	told := make(chan string, 100)
	source := replication(r)
	source.OnWaiting = func(detail string) { told <- detail }
	awaitTold := func(run *sourceRun) {
		t.Helper()
		want := fmt.Sprintf("now for that of process %d, open for ", writer.PgConn().PID())
		select {
		case detail := <-told:
			if !strings.Contains(detail, want) {
				t.Errorf("%q, want %q in it", detail, want)
			}
		case <-run.done:
			t.Fatalf("the source ended: %v", run.err)
		case <-time.After(patience):
			t.Fatal("not told that it waits")
		}
	}
	run := runSource(t, source)
	awaitTold(run)
	begun := time.Now()
	if err := run.stop(); err != nil || len(run.wakes) > 0 {
		t.Errorf("stopped while it waits: %v, %d wakes", err, len(run.wakes))
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("that took %v", took)
	}
	eventually(t, "no slot is left", noSlot(r))

	run = runSource(t, source)
	awaitTold(run)
	awaitTold(run) // three seconds later
	if n := len(run.wakes); n > 0 {
		t.Errorf("%d wakes before there is a slot", n)
	}
	pgtest.Exec(t, writer, `rollback`)
	run.await("when subscribed")
	r.insert("a", `1`)
	run.await("for an insert")
}
