package outbox_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestOneWakeForEachStatement(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	copyIn := func(t *testing.T) {
		rows := make([][]any, 500)
		for i := range rows {
			rows[i] = []any{"copied", "{}"}
		}
		if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"kind", "payload"}, pgx.CopyFromRows(rows)); err != nil {
			t.Fatal(err)
		}
	}
	statement := func(sql string) func(*testing.T) {
		return func(t *testing.T) { pgtest.Exec(t, conn, sql) }
	}
	for _, c := range []struct {
		name   string
		insert func(*testing.T)
		want   int
	}{
		{"one row", statement(`insert into outbox (kind, payload) values ('a', '{}')`), 1},
		{"many rows", statement(`insert into outbox (kind, payload) values ('a', '{}'), ('b', '{}'), ('c', '{}')`), 1},
		{"insert select", statement(`insert into outbox (kind, payload) select 'a', '{}' from generate_series(1, 1000)`), 1},
		{"copy", copyIn, 1},
		{"two statements of one transaction", statement(`begin; insert into outbox (kind, payload) values ('a', '{}'); insert into outbox (kind, payload) values ('a', '{}'); commit`), 1},
		{"rolled back", statement(`begin; insert into outbox (kind, payload) values ('a', '{}'); rollback`), 0},
		{"rolled back to a savepoint", statement(`begin; savepoint s; insert into outbox (kind, payload) values ('a', '{}'); rollback to s; commit`), 0},
		{"marked as sent", statement(`update outbox set sent_at = now()`), 0},
		{"deleted", statement(`delete from outbox`), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.insert(t)
			if got := l.wakes(t); got != c.want {
				t.Errorf("%d notifications, want %d", got, c.want)
			}
		})
	}
}

// Equal notifications of one transaction collapse, so a trigger for each row
// would pass the test above, and slow down each bulk insert.
func TestTriggerRunsOncePerStatement(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	plan := strings.Join(pgtest.Values[string](t, conn,
		`explain (analyze, costs off, timing off) insert into outbox (kind, payload) select 'a', '{}' from generate_series(1, 1000)`), "\n")
	if !strings.Contains(plan+"\n", "Trigger outbox_notify: calls=1\n") {
		t.Errorf("want one call of the trigger for 1000 rows:\n%s", plan)
	}
}

func TestOutboxesOfOneDatabaseDoNotHearEachOther(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	conn := pgtest.Connect(t, dsn)
	listeners := map[string]*listener{}
	for _, schema := range oddSchemas {
		migrate(t, conn, schema)
		listeners[schema] = listen(t, dsn, schema)
	}
	for _, schema := range oddSchemas {
		table := pgx.Identifier{schema, "outbox"}.Sanitize()
		pgtest.Exec(t, conn, `insert into `+table+` (kind, payload) values ('a', '{}')`)
		for name, l := range listeners {
			want := 0
			if name == schema {
				want = 1
			}
			if got := l.wakes(t); got != want {
				t.Errorf("insert into %q: %d notifications for %q, want %d", schema, got, name, want)
			}
		}
	}
}

func TestRenamedSchemaStillWakesAndRefuses(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn := pgtest.Connect(t, dsn)
	pgtest.Exec(t, conn, `alter schema public rename to moved`)
	l := listen(t, dsn, "moved")
	pgtest.Exec(t, conn, `insert into moved.outbox (kind, payload) values ('a', '{}')`)
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications, want 1", got)
	}
	err := refusal(t, conn, `insert into moved.outbox (kind, payload) values ('a b', '{}')`)
	if err.ConstraintName != "outbox_kind" || err.SchemaName != "moved" {
		t.Errorf("constraint %q of schema %q", err.ConstraintName, err.SchemaName)
	}
}

func TestChannelFitsPostgreSQL(t *testing.T) {
	t.Parallel()
	for _, schema := range oddSchemas {
		if name := channel(schema); !regexp.MustCompile(`^[a-z0-9_]{1,48}$`).MatchString(name) {
			t.Errorf("channel %q of schema %q", name, schema)
		}
	}
}

// Functions of other schemas must not be taken for ours, whatever search_path
// the producer has.
func TestSearchPathOfTheProducerIsHarmless(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	pgtest.Exec(t, conn, `
		create schema evil;
		create function evil.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'hijacked'; end $$;
		create function evil.left(text, int) returns text language plpgsql as $$ begin raise 'hijacked'; end $$;
		create view evil.pg_class as select oid, 'hijacked'::name as relname, relnamespace from pg_catalog.pg_class;
		create function evil.outbox_check(relation oid, kind text, payload jsonb, body bytea, headers jsonb, ordering_key text, attempts int,
			send_after timestamptz, created_at timestamptz, sent_at timestamptz, dead_at timestamptz, last_error text) returns boolean language sql as 'select true';
		create function evil.yes(text, text) returns boolean language sql as 'select true';
		create operator evil.~ (leftarg = text, rightarg = text, function = evil.yes);
		create function evil.never(double precision, integer) returns boolean language sql as 'select false';
		create operator evil.> (leftarg = double precision, rightarg = integer, function = evil.never);
		set search_path = evil, pg_catalog, public`)
	pgtest.Exec(t, conn, `insert into outbox (kind, payload) values ('a', '{}')`)
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications, want 1", got)
	}
	err := refusal(t, conn, `insert into outbox (kind, payload) values ('', '{}')`)
	if err.ConstraintName != "outbox_kind" || err.TableName != "outbox" {
		t.Errorf("refused by %q of table %q", err.ConstraintName, err.TableName)
	}
}

func TestTriggerSQLRepairsTheTrigger(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	conn := pgtest.Connect(t, dsn)
	for name, damage := range map[string]string{
		"missing":         `drop trigger outbox_notify on outbox`,
		"disabled":        `alter table outbox disable trigger outbox_notify`,
		"replica only":    `alter table outbox enable replica trigger outbox_notify`,
		"other function":  `create function nothing() returns trigger language plpgsql as 'begin return null; end'; create or replace trigger outbox_notify after insert on outbox execute function nothing()`,
		"each row":        `create or replace trigger outbox_notify after insert on outbox for each row execute function outbox_notify()`,
		"other event":     `create or replace trigger outbox_notify after update on outbox execute function outbox_notify()`,
		"condition":       `create or replace trigger outbox_notify after insert on outbox when (false) execute function outbox_notify()`,
		"version 1":       olderTrigger(t, "v1"),
		"version 2":       olderTrigger(t, "v2"),
		"no condition":    `create or replace trigger outbox_notify after insert on outbox execute function outbox_notify('v3')`,
		"other condition": `create or replace function outbox_unmasked(mask regclass) returns boolean language sql as 'select false'`,
		"changed body":    `create or replace function outbox_notify() returns trigger language plpgsql as 'begin return null; end'`,
	} {
		t.Run(name, func(t *testing.T) {
			migrate(t, conn, name)
			searchPath(t, conn, name)
			l := listen(t, dsn, name)
			pgtest.Exec(t, conn, damage)
			pgtest.Exec(t, conn, outbox.TriggerSQL)
			pgtest.Exec(t, conn, `insert into outbox (kind, payload) values ('a', '{}'), ('b', '{}')`)
			if got := l.wakes(t); got != 1 {
				t.Errorf("%d notifications, want 1", got)
			}
			if got := masked(t, conn, l, oneTask); got != 0 {
				t.Errorf("%d notifications under a lease, want none", got)
			}
		})
	}
}
