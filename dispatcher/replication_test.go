package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

const testPublication = "outbox_wake"

// publish makes a publication of a table's inserts.
func publish(t *testing.T, db *pgx.Conn, name, table string) {
	t.Helper()
	columns := " (id)"
	if pgtest.Value[int](t, db, `select current_setting('server_version_num')::int`) < 150_000 {
		columns = ""
	}
	pgtest.Exec(t, db, `create publication `+name+` for table `+table+columns+` with (publish = 'insert')`)
}

// replication is a source for the outbox of the rig, whose publication it makes;
// the trigger goes.
func replication(r *rig) *Replication {
	r.t.Helper()
	r.exec(`drop trigger outbox_notify on outbox`)
	publish(r.t, r.db, testPublication, "outbox")
	return replicationOf(r.t, r.dsn)
}

// replicationOf is a source for an outbox that has its publication.
func replicationOf(t *testing.T, dsn string) *Replication {
	t.Helper()
	return &Replication{
		Config: parsed(t, dsn), Publication: testPublication, Canary: "canary x",
		OnCanary: func() {}, OnWaiting: func(string) {},
	}
}

// A wake comes for each commit, exactly once, and the row is visible by then: who
// is woken looks at once, even before the producer knows that it has committed.
// Each outbox has one commit on its way at a time, so that it is known which the
// wake is for; the others keep the server busy. Twenty thousand commits.
func TestReplicationWakesOnceVisible(t *testing.T) {
	t.Parallel()
	const outboxes, commits = 4, 5000
	var writers sync.WaitGroup
	defer writers.Wait()
	for range outboxes {
		r, _ := dbRig(t)
		look := pgtest.Connect(t, r.dsn)
		replicated := replication(r)
		seen := make(chan int64, commits)
		run := runSource(t, source(func(ctx context.Context, _ func()) error {
			return replicated.Run(ctx, func() {
				var id int64
				if err := look.QueryRow(t.Context(), `select coalesce(max(id), 0) from outbox`).Scan(&id); err != nil {
					t.Error(err)
				}
				seen <- id
			})
		}))
		writers.Go(func() {
			defer func() { _ = run.stop() }()
			for want := range int64(commits) { // the first wake is for none
				select {
				case id := <-seen:
					if id != want {
						t.Errorf("woken for task %d, task %d is visible", want, id)
						return
					}
				case <-time.After(patience):
					t.Errorf("no wake for task %d", want)
					return
				}
				if _, err := r.db.Exec(t.Context(), `insert into outbox (kind, payload) values ('a', '1')`); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
}

// Of commits that come together, none is left behind: who looks when woken, and
// only then, finds them all.
func TestReplicationWakesForEachOfABurst(t *testing.T) {
	t.Parallel()
	const writers, rounds = 8, 500
	r, _ := dbRig(t)
	run := runSource(t, replication(r))
	run.await("when subscribed")
	begin := make([]chan struct{}, writers)
	for i := range begin {
		begin[i] = make(chan struct{}, 1)
	}
	var all sync.WaitGroup
	defer func() {
		for _, b := range begin {
			close(b)
		}
		all.Wait()
	}()
	for _, b := range begin {
		writer := pgtest.Connect(t, r.dsn)
		all.Go(func() {
			for range b {
				_, _ = writer.Exec(t.Context(), `insert into outbox (kind, payload) values ('a', '1')`) // missed below
			}
		})
	}
	for round := range rounds {
		for _, b := range begin {
			b <- struct{}{}
		}
		for found := 0; found < writers; {
			select {
			case <-run.wakes:
			case <-time.After(10 * time.Second):
				t.Fatalf("round %d: woken for %d of %d commits", round, found, writers)
			}
			tag, err := r.db.Exec(t.Context(), `delete from outbox`)
			if err != nil {
				t.Fatal(err)
			}
			found += int(tag.RowsAffected())
		}
	}
}

// The messages of dispatchers come through the log, and are no wakes.
func TestReplicationMessages(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	source := replication(r)
	heard := make(chan struct{}, 100)
	source.OnCanary = func() { heard <- struct{}{} }
	run := runSource(t, source)
	run.await("when subscribed")
	for _, m := range [][2]string{
		{testPublication, "canary other"},
		{"other", "canary x"},
		{testPublication, "canary x"},
		{testPublication, ""},
		{testPublication, "canary x"},
	} {
		r.exec(`select pg_logical_emit_message(true, $1, $2)`, m[0], m[1])
	}
	for n := range 2 {
		select {
		case <-heard:
		case <-time.After(patience):
			t.Fatalf("waited in vain for canary %d", n)
		}
	}
	if n := len(run.wakes) + len(heard); n > 0 {
		t.Errorf("%d wakes or messages too many", n)
	}
}

// Two outboxes of one database, in one process, are told apart, whatever the names.
func TestReplicationOfTwoOutboxes(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	pgtest.Migrate(t, r.dsn, "second")
	odd := `it's a "publication", not ours`
	publish(t, r.db, pgx.Identifier{odd}.Sanitize(), "second.outbox")
	second := replicationOf(t, r.dsn)
	second.Publication = odd
	runs := [2]*sourceRun{runSource(t, replication(r)), runSource(t, second)}
	for _, run := range runs {
		run.await("when subscribed")
	}
	for range 10 {
		for i, table := range []string{"public.outbox", "second.outbox"} {
			r.exec(`insert into ` + table + ` (kind, payload) values ('a', '1')`)
			runs[i].await("for the insert into " + table)
			if n := len(runs[1-i].wakes); n > 0 {
				t.Fatalf("%d wakes of the other outbox", n)
			}
		}
	}
}

func TestReplicationLeavesNothing(t *testing.T) {
	noLeaks(t)
	dsn := pgtest.NewDB(t)
	db := pgtest.Connect(t, dsn)
	publish(t, db, testPublication, "outbox")
	const left = `select (select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()) +
		(select count(*) from pg_replication_slots where database = current_database())`
	for n := range 100 {
		source := replicationOf(t, dsn)
		ctx, cancel := context.WithCancel(t.Context())
		// Before it is subscribed, after that, and in between.
		stop := time.AfterFunc(time.Duration(n)*time.Millisecond, cancel)
		woken := 0
		if err := source.Run(ctx, func() { woken++ }); err != nil {
			t.Errorf("after a stop after %d ms: %v", n, err)
		}
		stop.Stop()
		if woken > 1 {
			t.Errorf("%d wakes without a task", woken)
		}
		// The server's process may not be gone yet if it was about to begin.
		eventually(t, "no connection and no slot is left", func() error {
			if n := pgtest.Value[int](t, db, left); n > 0 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
	}
}
