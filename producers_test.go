package outbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// Whatever a producer is and does, its task wakes a sleeping dispatcher, and the
// lease is read. PRODUCER stands for a role that may insert into the outbox, and
// OTHER for one that may do nothing there.
var producers = []struct {
	name, setup, insert string
}{
	{name: "no search_path", insert: `set search_path = ''; INSERT`},
	{
		name: "hostile search_path",
		setup: `
			create schema evil; grant usage on schema evil to PRODUCER;
			create sequence evil.outbox_mask;
			create function evil.pg_sequence_last_value(regclass) returns bigint language plpgsql as $$ begin raise 'hijacked'; end $$;
			create function evil.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise 'hijacked'; end $$;
			create function evil.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'hijacked'; end $$;
			create function evil.lie(numeric, numeric) returns numeric language plpgsql as $$ begin raise 'hijacked'; end $$;
			create operator evil.- (leftarg = numeric, rightarg = numeric, function = evil.lie)`,
		insert: `set search_path = evil, pg_catalog, "My Outbox-1"; INSERT`,
	},
	{
		name: "temporary objects",
		insert: `create temporary sequence outbox_mask minvalue 0; create temporary table pg_trigger (n int);
			set search_path = pg_temp, "My Outbox-1"; INSERT`,
	},
	{name: "set role", setup: `grant PRODUCER to OTHER`, insert: `set session authorization OTHER; set role PRODUCER; INSERT`},
	{name: "set local role", setup: `grant PRODUCER to OTHER`, insert: `set session authorization OTHER; begin; set local role PRODUCER; INSERT; commit`},
	{name: "inherited rights", setup: `grant PRODUCER to OTHER`, insert: `set session authorization OTHER; INSERT`},
	{
		name: "security definer, called by a role without rights",
		setup: `revoke PRODUCER from OTHER;
			create function send() returns void language plpgsql security definer set search_path = '' as $$ begin INSERT; end $$;
			alter function send() owner to PRODUCER; grant execute on function send() to OTHER`,
		insert: `set session authorization OTHER; select public.send()`,
	},
	{
		name: "trigger of a table with row-level security",
		setup: `create table orders (customer text); alter table orders enable row level security, force row level security;
			create policy own on orders using (customer = current_user) with check (customer = current_user);
			grant insert, select on orders to PRODUCER;
			create function ordered() returns trigger language plpgsql as $$ begin INSERT; return new; end $$;
			create trigger ordered before insert on orders for each row execute function ordered()`,
		insert: `insert into public.orders values (current_user)`,
	},
	{
		name: "row trigger of a partition",
		setup: `create table events (n int) partition by range (n); grant insert on events to PRODUCER;
			create table events_1 partition of events for values from (0) to (100); grant insert on events_1 to PRODUCER;
			create function happened() returns trigger language plpgsql as $$ begin INSERT; return null; end $$;
			create trigger happened after insert on events for each row execute function happened()`,
		insert: `begin; insert into public.events select generate_series(1, 20); insert into public.events_1 values (50); commit`,
	},
	{
		name: "deferred constraint trigger",
		setup: `create table late (n int); grant insert on late to PRODUCER;
			create function lately() returns trigger language plpgsql as $$ begin INSERT; return null; end $$;
			create constraint trigger lately after insert on late deferrable initially deferred for each row execute function lately()`,
		insert: `begin; insert into public.late values (1); commit`,
	},
	{name: "savepoint", insert: `begin; savepoint s; INSERT; release s; commit`},
	{name: "exception block", insert: `do $$ begin INSERT; exception when others then raise; end $$`},
	{name: "prepared statement", insert: `prepare p as INSERT; execute p; deallocate p`},
	{name: "serializable", insert: `begin isolation level serializable; INSERT; commit`},
	{name: "asynchronous commit", insert: `set synchronous_commit = off; INSERT`},
}

func TestProducers(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	producer := as(t, dsn, admin, "producer")
	// The rights go along with the schema.
	pgtest.Exec(t, admin, `alter schema my_app rename to "My Outbox-1"; set search_path = "My Outbox-1"; grant usage on schema public to public`)
	other := newRole(t, admin, "other")
	l := listen(t, dsn, "My Outbox-1")
	fill := strings.NewReplacer("PRODUCER", producer.Config().User, "OTHER", other,
		"INSERT", `insert into "My Outbox-1".outbox (kind, payload) values ('a', '{}')`)
	for _, p := range producers {
		t.Run(p.name, func(t *testing.T) {
			pgtest.Exec(t, admin, `set search_path = public;`+fill.Replace(p.setup))
			pgtest.Exec(t, admin, `set search_path = "My Outbox-1"`)
			// A superuser may become anybody; like this no password is needed.
			conn := pgtest.Connect(t, dsn)
			insert := func() {
				pgtest.Exec(t, conn, `set session authorization `+producer.Config().User)
				runEach(t, conn, fill.Replace(p.insert))
				pgtest.Exec(t, conn, `reset session authorization; reset all; discard temporary`)
			}
			before := pgtest.Value[int](t, admin, `select count(*) from outbox`)
			insert()
			if got := l.wakes(t); got != 1 {
				t.Errorf("%d notifications, want 1", got)
			}
			if pgtest.Value[int](t, admin, `select count(*) from outbox`) == before {
				t.Error("no task was written")
			}
			if got := maskedBy(t, admin, l, insert); got != 0 {
				t.Errorf("%d notifications under a running lease, want none", got)
			}
		})
	}
}

// runEach runs the statements one by one, as clients do: together they would be
// one transaction.
func runEach(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if strings.Contains(sql, "$$") {
		pgtest.Exec(t, conn, sql)
		return
	}
	for statement := range strings.SplitSeq(sql, ";") {
		pgtest.Exec(t, conn, statement)
	}
}

// Sessions and tables for which the insert trigger does not run: their tasks wait
// for the sweep. migrations/README.md tells.
func TestTasksThatAreNotNotified(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	replica := `begin; set local session_replication_role = replica;` + oneTask + `; commit`
	for name, sql := range map[string]string{
		"replica": replica,
		"child":   `create table child () inherits (outbox); insert into child (id, kind, payload) values (1000000, 'a', '{}')`,
	} {
		pgtest.Exec(t, conn, sql)
		if got := l.wakes(t); got != 0 {
			t.Errorf("%s: %d notifications, want none", name, got)
		}
	}
	if n := pgtest.Value[int](t, conn, `select count(*) from outbox`); n != 2 {
		t.Errorf("%d tasks can be claimed, want both", n)
	}
	pgtest.Exec(t, conn, `alter table outbox enable always trigger outbox_notify`)
	for range 2 {
		migrate(t, conn, "public") // leaves it so
		pgtest.Exec(t, conn, replica)
		if got := l.wakes(t); got != 1 {
			t.Errorf("always: %d notifications, want 1", got)
		}
	}
	if got := masked(t, conn, l, replica); got != 0 {
		t.Errorf("always: %d notifications under a running lease, want none", got)
	}
}
