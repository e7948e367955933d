package outbox_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// wakeParts counts what the wakes of a schema have installed.
type wakeParts struct{ triggers, functions, publications int }

func wakePartsOf(t *testing.T, conn *pgx.Conn, schema string) (p wakeParts) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `
		select (select count(*) from pg_trigger where tgrelid = c.oid and tgname = 'outbox_notify'),
		       (select count(*) from pg_proc where pronamespace = c.relnamespace and proname in ('outbox_notify', 'outbox_unmasked')),
		       (select count(*) from pg_publication_rel where prrelid = c.oid)
		  from pg_class c join pg_namespace n on n.oid = c.relnamespace
		 where n.nspname = $1 and c.relname = 'outbox'`, schema).Scan(&p.triggers, &p.functions, &p.publications)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Whichever wake is chosen after whichever, it has what it needs and nothing is left
// of the others; the outbox of another schema keeps its own.
func TestMigrateSwitchesTheWake(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	parts := map[outbox.Wake]wakeParts{
		outbox.WakeNotify: {1, 2, 0},
		outbox.WakeWAL:    {0, 0, 1},
		outbox.WakeAuto:   {1, 2, 1},
		outbox.WakePoll:   {0, 0, 0},
	}
	to := func(schema string, wake outbox.Wake) {
		t.Helper()
		if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: schema, Wake: wake}); err != nil {
			t.Fatal(err)
		}
		if got := wakePartsOf(t, conn, schema); got != parts[wake] {
			t.Errorf("schema %s at wake %s: %+v, want %+v", schema, wake, got, parts[wake])
		}
	}
	to("other", outbox.WakeWAL)
	for from := range parts {
		for wake := range parts {
			to("odd Schema", from)
			to("odd Schema", wake)
		}
	}
	if got := wakePartsOf(t, conn, "other"); got != parts[outbox.WakeWAL] {
		t.Errorf("the other schema: %+v", got)
	}
	for _, schema := range []string{"odd Schema", "other"} {
		if _, err := outbox.MigrateDown(t.Context(), conn, 0, outbox.MigrateOptions{Schema: schema}); err != nil {
			t.Fatal(err)
		}
	}
	if n := pgtest.Value[int](t, conn, `select count(*) from pg_publication`); n != 0 {
		t.Errorf("%d publications are left", n)
	}
}

func TestPublicationIsRepaired(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	o := outbox.MigrateOptions{Wake: outbox.WakeWAL}
	migrateWAL := func() {
		t.Helper()
		if _, err := outbox.Migrate(t.Context(), conn, o); err != nil {
			t.Fatal(err)
		}
	}
	migrateWAL()
	name := pgtest.Value[string](t, conn, `select pubname from pg_publication`)
	if name != channel("public") {
		t.Errorf("publication %q, want the name of the channel, %q", name, channel("public"))
	}
	state := func() string {
		return pgtest.Value[string](t, conn, `
			select concat(pubinsert, pubupdate, pubdelete, pubtruncate, puballtables, ' ', (select string_agg(tablename, ',') from pg_publication_tables t where t.pubname = p.pubname))
			  from pg_publication p where pubname = $1`, name)
	}
	good := state()
	for damage, sql := range map[string]string{
		"missing":       `drop publication ` + name,
		"all actions":   `alter publication ` + name + ` set (publish = 'insert, update, delete')`,
		"no inserts":    `alter publication ` + name + ` set (publish = 'delete')`,
		"other table":   `create table other (n int); alter publication ` + name + ` set table other`,
		"another table": `create table more (n int); alter publication ` + name + ` add table more`,
		"all tables":    `drop publication ` + name + `; create publication ` + name + ` for all tables with (publish = 'insert')`,
	} {
		pgtest.Exec(t, conn, sql)
		migrateWAL()
		if got := state(); !cmp.Equal(got, good) {
			t.Errorf("%s: %s, want %s", damage, got, good)
		}
	}
	before := pgtest.Value[uint32](t, conn, `select oid from pg_publication`)
	migrateWAL()
	if now := pgtest.Value[uint32](t, conn, `select oid from pg_publication`); now != before {
		t.Error("a publication that is as it should be was made anew")
	}
}

func TestPublicationNeedsRights(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	admin := pgtest.Connect(t, dsn)
	role := newRole(t, admin, "maker")
	pgtest.Exec(t, admin, `create schema own authorization `+role)
	conn := pgtest.Connect(t, dsn)
	pgtest.Exec(t, conn, `set role `+role)
	_, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: "own", Wake: outbox.WakeWAL})
	if err == nil || !strings.Contains(err.Error(), "grant create on database") {
		t.Errorf("error %v does not say what right is missing", err)
	}
	if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: "own", Wake: "sms"}); err == nil || !strings.Contains(err.Error(), `"sms"`) {
		t.Errorf("unknown wake: %v", err)
	}
}

// The printed SQL makes the same.
func TestPrintedSQLHasTheWake(t *testing.T) {
	t.Parallel()
	for wake, want := range map[outbox.Wake]wakeParts{outbox.WakeWAL: {0, 0, 1}, outbox.WakeAuto: {1, 2, 1}, outbox.WakePoll: {}} {
		conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
		text, err := outbox.MigrationSQL(outbox.MigrateOptions{Schema: "s", Wake: wake})
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, conn, text)
		if got := wakePartsOf(t, conn, "s"); got != want {
			t.Errorf("wake %s: %+v, want %+v", wake, got, want)
		}
	}
}
