package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// documentedGrants are the SQL blocks of migrations/README.md, by the role that
// they are for, so that the page is what is tested.
func documentedGrants(t *testing.T, role string) string {
	t.Helper()
	page, err := os.ReadFile("migrations/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(block[1], " to "+role) {
			return block[1]
		}
	}
	t.Fatalf("migrations/README.md has no grants for %s", role)
	return ""
}

// strictDatabase has an outbox in schema my_app made where the defaults give
// nothing to everybody.
func strictDatabase(t *testing.T) (dsn string, admin *pgx.Conn) {
	t.Helper()
	dsn = pgtest.NewEmptyDB(t)
	admin = pgtest.Connect(t, dsn)
	pgtest.Exec(t, admin, `
		alter default privileges revoke execute on functions from public;
		alter default privileges revoke all on tables from public;
		alter default privileges revoke all on sequences from public;
		revoke all on schema public from public`)
	migrate(t, admin, "my_app")
	return dsn, admin
}

// newRole makes a role for one test. Roles belong to the whole server, hence its
// longer name, which it returns.
func newRole(t *testing.T, admin *pgx.Conn, role string) (name string) {
	t.Helper()
	name = role + "_" + pgtest.Value[string](t, admin, `select current_database()::text`)
	pgtest.Exec(t, admin, `create role `+name+` login`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := admin.Exec(ctx, `drop owned by `+name+`; drop role `+name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// as connects as a new role that has the documented grants of the named one.
func as(t *testing.T, dsn string, admin *pgx.Conn, role string) *pgx.Conn {
	t.Helper()
	name := newRole(t, admin, role)
	pgtest.Exec(t, admin, regexp.MustCompile(`\b`+role+`\b`).ReplaceAllString(documentedGrants(t, role), name))
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User = name
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	searchPath(t, conn, "my_app")
	return conn
}

func allowed(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func denied(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "42501" {
			t.Errorf("%s: error = %v, want permission denied", sql, err)
		}
	}
}

func TestProducerRole(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	conn, l := as(t, dsn, admin, "producer"), listen(t, dsn, "my_app")
	allowed(t, conn, oneTask, `insert into outbox (kind, body, headers) select 'b', '', '{"h": "v"}'`)
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"kind", "payload"}, pgx.CopyFromRows([][]any{{"c", "{}"}})); err != nil {
		t.Errorf("copy: %v", err)
	}
	if got := l.wakes(t); got != 3 {
		t.Errorf("%d notifications, want 3", got)
	}
	err := refusal(t, conn, `insert into outbox (kind, payload) values ('a b', '{}')`)
	if err.ConstraintName != "outbox_kind" || err.Hint == "" {
		t.Errorf("a bad kind: %v, want the refusal with its hint", err)
	}
	denied(t, conn, `select kind from outbox`, `update outbox set sent_at = now()`, `delete from outbox`, `truncate outbox`,
		`select name from outbox_source`, `select nextval('outbox_id_seq')`, `create table t ()`,
		`select setval('outbox_mask', 0)`, `select nextval('outbox_mask')`, `drop trigger outbox_notify on outbox`)
	_, enqueueErr := outbox.Enqueue(t.Context(), conn, outbox.Task{Kind: "a", Payload: 1})
	wantInError(t, enqueueErr, "permission denied", "select (id)")
}

func TestGoProducerRole(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	conn := as(t, dsn, admin, "go_producer")
	for _, o := range []outbox.Outbox{{}, {Schema: "my_app"}} {
		if _, err := o.Enqueue(t.Context(), conn, outbox.Task{Kind: "a", Payload: 1, Headers: map[string]string{"h": "v"}}); err != nil {
			t.Errorf("Enqueue: %v", err)
		}
	}
	denied(t, conn, `select kind from outbox`, `update outbox set sent_at = now()`, `select setval('outbox_mask', 0)`, `select nextval('outbox_mask')`)
}

func TestDispatcherRole(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	searchPath(t, admin, "my_app")
	pgtest.Exec(t, admin, oneTask)
	conn := as(t, dsn, admin, "dispatcher")
	allowed(t, conn, `select name from outbox_source`, fmt.Sprintf(`listen %s`, channel("my_app")),
		`with due as materialized (
			select id from outbox where sent_at is null and dead_at is null and send_after <= now()
			order by send_after, id limit 10 for update skip locked)
		update outbox o set sent_at = now(), attempts = attempts + 1 from due where o.id = due.id returning o.*`,
		`update outbox set sent_at = null, send_after = now(), last_error = 'refused'`,
		`update outbox set dead_at = now()`,
		`select setval('outbox_mask', greatest(1, last_value)) from outbox_mask`)
	denied(t, conn, oneTask, `delete from outbox`, `update outbox_source set name = 'x'`, `truncate outbox`, `create table t ()`,
		`drop sequence outbox_mask`, `alter sequence outbox_mask restart`)
}

// The recipes of the README's page for operators.
func TestOperatorRole(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	searchPath(t, admin, "my_app")
	pgtest.Exec(t, admin, oneTask)
	pgtest.Exec(t, admin, `update outbox set dead_at = now(), attempts = 30, last_error = 'refused'`)
	conn := as(t, dsn, admin, "operator")
	allowed(t, conn, `select id, kind, last_error from outbox where dead_at is not null`,
		`update outbox set dead_at = null, last_error = null, attempts = 0, send_after = now()`,
		`insert into outbox (kind, payload, body, headers) select kind, payload, body, headers from outbox`,
		`update outbox set sent_at = now() - interval '2 days'`,
		`delete from outbox where id in (select id from outbox where sent_at < now() - interval '1 day' limit 10000)`,
		`select name from outbox_source`)
	if left := pgtest.Value[int64](t, admin, `select count(*) from outbox`); left != 0 {
		t.Errorf("%d tasks are left, want none", left)
	}
	if got, err := outbox.MigrationStatus(t.Context(), conn, outbox.MigrateOptions{Schema: "my_app"}); err != nil || got[0].AppliedAt.IsZero() {
		t.Errorf("MigrationStatus = %v, %v", got, err)
	}
	denied(t, conn, `truncate outbox`, `update outbox_source set name = 'x'`, `create table t ()`, `drop trigger outbox_notify on outbox`,
		`select setval('outbox_mask', 0)`, `select nextval('outbox_mask')`)
}

func TestReaderRole(t *testing.T) {
	t.Parallel()
	dsn, admin := strictDatabase(t)
	conn := as(t, dsn, admin, "reader")
	allowed(t, conn, `select * from outbox`, `select * from outbox_source`)
	if got, err := outbox.MigrationStatus(t.Context(), conn, outbox.MigrateOptions{Schema: "my_app"}); err != nil || got[0].AppliedAt.IsZero() {
		t.Errorf("MigrationStatus = %v, %v", got, err)
	}
	denied(t, conn, oneTask, `update outbox set sent_at = now()`, `delete from outbox`, `select from outbox for update`, `select setval('outbox_mask', 0)`, `select nextval('outbox_mask')`)
}

// Migrate needs no more than to own the schema, so that it can run with the
// application's own migrations; only making a schema needs more.
func TestMigratorRole(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	admin := pgtest.Connect(t, dsn)
	conn := as(t, dsn, admin, "migrator")
	for range 2 {
		if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: "my_app"}); err != nil {
			t.Errorf("Migrate: %v", err)
		}
	}
	_, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: "another"})
	wantInError(t, err, "creating the schema", "permission denied")
	if _, err := outbox.MigrateDown(t.Context(), conn, 0, outbox.MigrateOptions{Schema: "my_app"}); err != nil {
		t.Errorf("MigrateDown: %v", err)
	}
}
