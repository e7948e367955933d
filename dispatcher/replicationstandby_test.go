package dispatcher

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

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
	if names != "" {
		awaitCommitsWait(r)
	}
}

// awaitCommitsWait waits until the server has commits wait: its checkpointer, which
// switches that on for all, may read the setting after the sessions.
func awaitCommitsWait(r *rig) {
	r.t.Helper()
	probe := pgtest.Connect(r.t, r.dsn)
	pid := probe.PgConn().PID()
	begun := time.Now()
	for waits := false; !waits; {
		if time.Since(begun) > patience {
			r.t.Fatal("no commit waits for a standby")
		}
		done := make(chan error, 1)
		go func() {
			_, err := probe.Exec(r.t.Context(), `select pg_logical_emit_message(true, 'probe', '')`)
			done <- err
		}()
		ended := false
		eventually(r.t, "a commit waits or ends", func() error {
			select {
			case err := <-done:
				ended = true
				return err
			default:
			}
			if waits = query[bool](r, `select coalesce(wait_event = 'SyncRep', false) from pg_stat_activity where pid = $1`, pid); !waits {
				return errors.New("it does neither")
			}
			return nil
		})
		if !ended {
			// A canceled wait is a warning; the transaction is committed.
			r.exec(`select pg_cancel_backend($1)`, pid)
			if err := <-done; err != nil {
				r.t.Fatal(err)
			}
		}
	}
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
