package dispatcher

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// setStandbys has commits wait for standbys, or not.
func setStandbys(r *rig, names string) {
	r.t.Helper()
	r.exec(`alter system set synchronous_standby_names = '` + names + `'`)
	r.exec(`select pg_reload_conf()`)
	eventually(r.t, "the setting is in force", func() error {
		if got := query[string](r, `show synchronous_standby_names`); got != names {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// stall makes an insert whose commit waits for a standby, and returns what waits
// for its end.
func stall(r *rig) (end func()) {
	r.t.Helper()
	producer := pgtest.Connect(r.t, r.dsn)
	done := make(chan error, 1)
	go func() {
		_, err := producer.Exec(r.t.Context(), `insert into outbox (kind, payload) values ('stalled', '1')`)
		done <- err
	}()
	eventually(r.t, "the commit waits for a standby", func() error {
		if !query[bool](r, `select coalesce(wait_event = 'SyncRep', false) from pg_stat_activity where pid = $1`, producer.PgConn().PID()) {
			return errors.New("it does not")
		}
		return nil
	})
	return func() {
		r.t.Helper()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// A commit that waits for a standby is in the log, but nobody can see it: no wake
// for as long as that takes, and others are not held up.
func TestReplicationWithStalledStandby(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, nil)
	r.exec(`set synchronous_commit = local`) // of this session
	source := replication(r)
	canary := make(chan struct{}, 1)
	source.OnCanary = func() { canary <- struct{}{} }
	run := runSource(t, source)
	run.await("when subscribed")
	setStandbys(r, "nobody")
	end := stall(r)
	for range 20 {
		// The log is read in order, so the stalled commit was read before these.
		r.exec(`select pg_logical_emit_message(true, $1, 'canary x')`, testPublication)
		select {
		case <-canary:
		case <-time.After(patience):
			t.Fatal("no canary")
		}
	}
	if n := len(run.wakes); n > 0 {
		t.Fatalf("%d wakes for a task that is not visible", n)
	}
	r.insert("local", `1`)
	run.await("for another insert")
	// Asked for again and again, though rarely.
	asked := query[int64](r, `select xact_commit from pg_stat_database where datname = current_database()`)
	eventually(t, "the gate asks", func() error {
		if n := query[int64](r, `select xact_commit from pg_stat_database where datname = current_database()`); n == asked {
			return errors.New("it does not")
		}
		return nil
	})
	if n := len(run.wakes); n > 0 {
		t.Fatalf("%d wakes for a task that is not visible", n)
	}
	setStandbys(r, "")
	run.await("when the task is visible")
	end()
}

// A commit that is in the log before the slot begins, and not visible before it is
// made, is not missed either.
func TestReplicationStalledBeforeTheSlot(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, nil)
	r.exec(`set synchronous_commit = local`)
	source := replication(r)
	first, second := pgtest.Connect(t, r.dsn), pgtest.Connect(t, r.dsn)
	const write = `begin; select pg_current_xact_id()`
	pgtest.Exec(t, first, write)
	run := runSource(t, source)
	// The server first waits for those who write, then for those who did when those
	// had ended; what commits meanwhile the slot will not show.
	awaitBlocker(r, first)
	pgtest.Exec(t, second, write)
	pgtest.Exec(t, first, `rollback`)
	awaitBlocker(r, second)
	setStandbys(r, "nobody")
	end := stall(r)
	pgtest.Exec(t, second, `rollback`)
	run.await("when subscribed")
	setStandbys(r, "")
	run.await("when the task is visible")
	end()
}

// awaitBlocker waits until the slot waits for that session.
func awaitBlocker(r *rig, conn *pgx.Conn) {
	r.t.Helper()
	eventually(r.t, "the slot waits for the writer", func() error {
		if !query[bool](r, `select exists (select from pg_replication_slots where $1::int = any(pg_blocking_pids(active_pid)))`, conn.PgConn().PID()) {
			return errors.New("it does not")
		}
		return nil
	})
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
