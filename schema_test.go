package outbox_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestPsqlAndMigrateMakeTheSame(t *testing.T) {
	t.Parallel()
	byHand := pgtest.NewEmptyDB(t)
	for _, m := range all {
		up, err := outbox.Migrations.ReadFile("migrations/" + m.Name + ".up.sql")
		if err != nil {
			t.Fatal(err)
		}
		psql(t, byHand, string(up))
	}
	psql(t, byHand, outbox.TriggerSQL)
	psql(t, byHand, outbox.TriggerSQL)
	byProgram := pgtest.NewDB(t)
	got, want := dumpSchema(t, byHand), dumpSchema(t, byProgram, "--exclude-table=outbox_migration")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("psql (+) and Migrate (-) differ:\n%s", diff)
	}
	if !strings.Contains(got, "CREATE TRIGGER outbox_notify") || !strings.Contains(got, "outbox_due") {
		t.Errorf("the dump lacks the trigger or the index:\n%s", got)
	}
}

func TestPrintedSQLEqualsMigrate(t *testing.T) {
	t.Parallel()
	printed, byProgram := pgtest.NewEmptyDB(t), pgtest.NewEmptyDB(t)
	conn, other := pgtest.Connect(t, byProgram), pgtest.Connect(t, printed)
	// An old setting that changes what a backslash means, and a search_path
	// that leads elsewhere, must not matter.
	pgtest.Exec(t, conn, `set standard_conforming_strings = off; set search_path = nowhere`)
	for _, schema := range append(oddSchemas, "public") {
		o := outbox.MigrateOptions{Schema: schema}
		text, err := outbox.MigrationSQL(o)
		if err != nil {
			t.Fatal(err)
		}
		psql(t, printed, "set standard_conforming_strings = off; set search_path = nowhere;\n"+text)
		migrate(t, conn, schema)
		if applied, err := outbox.Migrate(t.Context(), other, o); err != nil || len(applied) != 0 {
			t.Errorf("Migrate in %q after the printed SQL = %v, %v: want nothing to do", schema, applied, err)
		}
		for _, c := range []*pgx.Conn{conn, other} {
			searchPath(t, c, schema)
			pgtest.Exec(t, c, oneTask)
		}
	}
	if diff := cmp.Diff(dumpSchema(t, byProgram), dumpSchema(t, printed)); diff != "" {
		t.Errorf("psql (+) and Migrate (-) differ:\n%s", diff)
	}
}

func TestPrintedSQLFailsWholeWhenTheOutboxExists(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn := pgtest.Connect(t, dsn)
	before := dumpSchema(t, dsn)
	text, err := outbox.MigrationSQL(outbox.MigrateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), text); err == nil {
		t.Error("the printed SQL ran twice")
	}
	if diff := cmp.Diff(before, dumpSchema(t, dsn)); diff != "" {
		t.Errorf("the second run changed the schema:\n%s", diff)
	}
}

func TestSchemaNamesThatPostgreSQLCannotTake(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	for _, schema := range []string{strings.Repeat("x", 64), "a\x00b", "a\xffb"} {
		o := outbox.MigrateOptions{Schema: schema}
		if _, err := outbox.Migrate(t.Context(), conn, o); err == nil || !strings.Contains(err.Error(), "1 to 63 bytes") {
			t.Errorf("Migrate in %q: %v", schema, err)
		}
		if _, err := outbox.MigrationSQL(o); err == nil {
			t.Errorf("MigrationSQL for %q: no error", schema)
		}
	}
}

// Neither what is due nor what is dead may cost a look at the sent rows.
func TestIndexesServeTheirQueries(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	pgtest.Exec(t, conn, `
		insert into outbox (kind, payload, sent_at) select 'sent', '{}', now() from generate_series(1, 20000);
		insert into outbox (kind, payload, dead_at) select 'dead', '{}', now() from generate_series(1, 20);
		insert into outbox (kind, payload) select 'due', '{}' from generate_series(1, 20);
		analyze outbox`)
	for index, query := range map[string]string{
		"outbox_due": `select id from outbox where sent_at is null and dead_at is null and send_after <= now()
			order by send_after, id limit 10 for update skip locked`,
		"outbox_dead": `select id from outbox where dead_at is not null order by id limit 10`,
	} {
		plan := strings.Join(pgtest.Values[string](t, conn, `explain (costs off) `+query), "\n")
		if !strings.Contains(plan, "using "+index) || strings.Contains(plan, "Sort") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("want a plain scan of %s, got:\n%s", index, plan)
		}
	}
}

func TestBodiesAreStoredUncompressed(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	pgtest.Exec(t, conn, `
		insert into outbox (kind, body) values ('a', repeat('x', 100000)::bytea);
		insert into outbox (kind, payload) values ('b', to_jsonb(repeat('x', 100000)))`)
	if n := pgtest.Value[int](t, conn, `select min(coalesce(pg_column_size(body), pg_column_size(payload))) from outbox`); n < 100000 {
		t.Errorf("a body of 100000 bytes takes %d", n)
	}
}
