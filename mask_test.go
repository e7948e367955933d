package outbox_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

const (
	// running is a lease that runs for some seconds, by the server's clock.
	running = `(extract(epoch from clock_timestamp()) * 1000)::bigint + 4000`
	expired = `(extract(epoch from clock_timestamp()) * 1000)::bigint - 1`

	manyTasks = `insert into outbox (kind, payload) select 'a', '{}' from generate_series(1, 1000)`
)

// setLease returns the statement that sets the lease in the schema of search_path.
func setLease(value string) string { return `select setval('outbox_mask', ` + value + `);` }

// masked runs the statements while a dispatcher's lease is running, and returns
// how many notifications came. On a machine so slow that the lease ran out
// meanwhile it tries again. admin's search_path leads to the outbox.
func masked(t *testing.T, admin *pgx.Conn, l *listener, sql string) (wakes int) {
	t.Helper()
	return maskedBy(t, admin, l, func() { pgtest.Exec(t, admin, sql) })
}

// maskedBy is [masked] for what is more than SQL.
func maskedBy(t *testing.T, admin *pgx.Conn, l *listener, insert func()) (wakes int) {
	t.Helper()
	for range 20 {
		pgtest.Exec(t, admin, setLease(running))
		insert()
		ran := pgtest.Value[bool](t, admin, `select last_value > extract(epoch from clock_timestamp()) * 1000 from outbox_mask`)
		pgtest.Exec(t, admin, setLease(`0`))
		if got := l.wakes(t); ran {
			return got
		}
	}
	t.Fatal("no insert ended within the 4 s of the lease")
	return 0
}

// olderTrigger is trigger.sql as it was in an older version: v1, before notifications
// could be masked, or v2, with the whole condition in the trigger.
func olderTrigger(t *testing.T, version string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/trigger_" + version + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOnlyARunningLeaseMasks(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	pgtest.Exec(t, conn, oneTask)
	if got := l.wakes(t); got != 1 {
		t.Errorf("lease never set: %d notifications, want 1", got)
	}
	for name, value := range map[string]string{
		"cleared":       `0`,
		"expired":       expired,
		"an hour ahead": running + ` + 3600000`,
		"the most":      `9223372036854775807`,
	} {
		pgtest.Exec(t, conn, setLease(value))
		for _, sql := range []string{oneTask, manyTasks} {
			pgtest.Exec(t, conn, sql)
			if got := l.wakes(t); got != 1 {
				t.Errorf("lease %s: %d notifications, want 1", name, got)
			}
		}
	}
	for name, sql := range map[string]string{
		"one row": oneTask, "many rows": manyTasks,
		"two statements": `begin;` + oneTask + `;` + oneTask + `; commit`,
	} {
		if got := masked(t, conn, l, sql); got != 0 {
			t.Errorf("%s: %d notifications under a running lease, want none", name, got)
		}
	}
	copied := maskedBy(t, conn, l, func() {
		if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"kind", "payload"}, pgx.CopyFromRows([][]any{{"c", "{}"}})); err != nil {
			t.Fatal(err)
		}
	})
	if copied != 0 {
		t.Errorf("copy: %d notifications under a running lease, want none", copied)
	}
}

// The dispatcher relies on it: whoever saw the mask had written its rows. So the
// lease at the end of the statement decides, not the one at its beginning.
func TestLeaseIsReadAfterTheRowsAreWritten(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	pgtest.Exec(t, conn, `
		create function lease(text) returns jsonb language plpgsql volatile as $$
		begin
			if $1 = 'mask' then
				perform setval('outbox_mask', `+running+`);
			elsif $1 = 'clear' then
				perform setval('outbox_mask', 0);
			end if;
			return '{}';
		end $$;
		create function obey() returns trigger language plpgsql as $$ begin perform lease(new.kind); return new; end $$;
		create table other (n int)`)
	rowTrigger := `create trigger obey before insert on outbox for each row execute function obey();`
	for name, insert := range map[string]func(command string) string{
		"function in the select": func(c string) string {
			return `insert into outbox (kind, payload) select 'a', lease(case i when 500 then '` + c + `' end) from generate_series(1, 1000) i`
		},
		"row trigger": func(c string) string {
			return rowTrigger + `insert into outbox (kind, payload) values ('a', '{}'), ('` + c + `', '{}'), ('a', '{}'); drop trigger obey on outbox`
		},
		"with clause": func(c string) string {
			return `with task as (insert into outbox (kind, payload) select 'a', lease('` + c + `') returning 1) insert into other select * from task`
		},
	} {
		t.Run(name, func(t *testing.T) {
			pgtest.Exec(t, conn, setLease(running)+insert("clear"))
			if got := l.wakes(t); got != 1 {
				t.Errorf("cleared meanwhile: %d notifications, want 1", got)
			}
			got := maskedBy(t, conn, l, func() { pgtest.Exec(t, conn, setLease(`0`)+insert("mask")) })
			if got != 0 {
				t.Errorf("set meanwhile: %d notifications, want none", got)
			}
		})
	}
	// Two inserts into the outbox in one statement: the last one decides.
	pgtest.Exec(t, conn, setLease(running)+`with first as (insert into outbox (kind, payload) values ('a', '{}') returning 1)
		insert into outbox (kind, payload) select 'b', lease('clear') from first`)
	if got := l.wakes(t); got != 1 {
		t.Errorf("cleared between two inserts of one statement: %d notifications, want 1", got)
	}
}

// Neither a rollback nor an old snapshot may hide the lease.
func TestLeaseIsNotPartOfATransaction(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	got := maskedBy(t, conn, l, func() {
		pgtest.Exec(t, conn, setLease(`0`)+`begin;`+setLease(running)+`rollback;`+oneTask)
	})
	if got != 0 {
		t.Errorf("set in a transaction that was rolled back: %d notifications, want none", got)
	}
	producer := pgtest.Connect(t, dsn)
	for _, level := range []string{"repeatable read", "serializable"} {
		got := maskedBy(t, conn, l, func() {
			pgtest.Exec(t, conn, setLease(`0`))
			pgtest.Exec(t, producer, `begin isolation level `+level+`; select count(*) from outbox`)
			pgtest.Exec(t, conn, setLease(running))
			pgtest.Exec(t, producer, oneTask+`; commit`)
		})
		if got != 0 {
			t.Errorf("%s, set after the snapshot: %d notifications, want none", level, got)
		}
		pgtest.Exec(t, conn, setLease(running))
		pgtest.Exec(t, producer, `begin isolation level `+level+`; select count(*) from outbox`)
		pgtest.Exec(t, conn, setLease(`0`))
		pgtest.Exec(t, producer, oneTask+`; commit`)
		if got := l.wakes(t); got != 1 {
			t.Errorf("%s, cleared after the snapshot: %d notifications, want 1", level, got)
		}
	}
}

func TestUpgradeFromTheUnmaskedTrigger(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	insert := func(when string, want int) {
		t.Helper()
		pgtest.Exec(t, conn, oneTask)
		if got := l.wakes(t); got != want {
			t.Errorf("%s: %d notifications, want %d", when, got, want)
		}
	}
	for _, enable := range []string{"", `; alter table outbox enable always trigger outbox_notify`} {
		if _, err := outbox.MigrateDown(t.Context(), conn, 1, outbox.MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
		insert("at version 1, whose trigger is not there", 0)
		pgtest.Exec(t, conn, olderTrigger(t, "v1")+enable)
		insert("version 1", 1)
		if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{NoTrigger: true}); err != nil {
			t.Fatal(err)
		}
		insert("the sequence and the old trigger", 1)
		state := pgtest.Value[string](t, conn, `select tgenabled::text from pg_trigger where tgname = 'outbox_notify'`)
		migrate(t, conn, "public")
		insert("the present version", 1)
		if got := masked(t, conn, l, oneTask); got != 0 {
			t.Errorf("%d notifications under a running lease, want none", got)
		}
		if now := pgtest.Value[string](t, conn, `select tgenabled::text from pg_trigger where tgname = 'outbox_notify'`); now != state {
			t.Errorf("the trigger fired %q, and after the upgrade %q", state, now)
		}
	}
	if n := pgtest.Value[int](t, conn, `select count(*) from outbox`); n < 8 {
		t.Errorf("%d tasks are left after the ways down and up", n)
	}
}
