package outbox_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// restoredOutbox is what must be the same after a dump and a restore. The lease
// is a time, and of no use to anybody later.
const restoredOutbox = `select jsonb_agg(o order by id)::text || (select name from outbox_source)
	|| pg_get_triggerdef((select oid from pg_trigger where tgname = 'outbox_notify' and tgrelid = 'outbox'::regclass)) from outbox o`

func TestDumpAndRestoreKeepTheOutbox(t *testing.T) {
	t.Parallel()
	skipWithoutPgDump(t)
	dsn := pgtest.NewEmptyDB(t)
	admin := pgtest.Connect(t, dsn)
	// The owner is not the superuser that restores.
	owner, producer := newRole(t, admin, "owner"), newRole(t, admin, "producer")
	pgtest.Exec(t, admin, `create schema "My Outbox-1" authorization `+owner+`; set session authorization `+owner)
	migrate(t, admin, "My Outbox-1")
	pgtest.Exec(t, admin, producerRights(t, producer)+`; reset session authorization; set search_path = "My Outbox-1";
		insert into outbox (kind, payload, headers, send_after) values ('a', '{"n": 1}', '{"h": "v"}', '2000-01-01'), ('b', 'null', null, now());
		insert into outbox (kind, body, ordering_key) values ('c', '\x00ff', 'k');
		update outbox set sent_at = now(), attempts = 1 where kind = 'b'`)
	want := pgtest.Value[string](t, admin, restoredOutbox)
	for _, options := range []string{"", "--no-owner", "--no-privileges", "--no-owner --no-privileges"} {
		for _, format := range []string{"custom", "plain"} {
			t.Run(format+" "+options, func(t *testing.T) {
				// A lease far ahead stands for the clock of another machine.
				pgtest.Exec(t, admin, setLease(running+` + 3600000`))
				to := dumpAndRestore(t, dsn, format, strings.Fields(options))
				restored, l := pgtest.Connect(t, to), listen(t, to, "My Outbox-1")
				pgtest.Exec(t, restored, `set search_path = "My Outbox-1"`)
				if diff := cmp.Diff(want, pgtest.Value[string](t, restored, restoredOutbox)); diff != "" {
					t.Errorf("the outbox after the restore:\n%s", diff)
				}
				if strings.Contains(options, "--no-privileges") {
					restoreRights(t, to, producer, restored, l)
				}
				checkRestored(t, to, producer, restored, l)
			})
		}
	}
}

// dumpAndRestore returns the DSN of a new database with everything in it.
func dumpAndRestore(t *testing.T, from, format string, options []string) string {
	t.Helper()
	file, to := filepath.Join(t.TempDir(), "dump"), pgtest.NewEmptyDB(t)
	if format == "plain" {
		tool(t, "", "pg_dump", append(options, "--format=plain", "--file="+file, from)...)
		tool(t, "", "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, to)
		return to
	}
	tool(t, "", "pg_dump", "--format=custom", "--file="+file, from)
	tool(t, "", "pg_restore", append(options, "--exit-on-error", "--dbname="+to, file)...)
	return to
}

// producerRights are the documented ones, for this outbox and role.
func producerRights(t *testing.T, role string) string {
	t.Helper()
	return strings.NewReplacer("my_app", `"My Outbox-1"`, " producer", " "+role).Replace(documentedGrants(t, "producer"))
}

// insertAs returns what PostgreSQL says when the role inserts a task.
func insertAs(t *testing.T, dsn, role string) error {
	t.Helper()
	conn := pgtest.Connect(t, dsn)
	pgtest.Exec(t, conn, `set session authorization `+role+`; set search_path = "My Outbox-1"`)
	_, err := conn.Exec(t.Context(), oneTask)
	return err
}

// restoreRights gives the producer what the dump lost. Without the right to read
// the lease its INSERT fails, or notifies where PostgreSQL treats it as unknown;
// trigger.sql renews that right.
func restoreRights(t *testing.T, dsn, producer string, admin *pgx.Conn, l *listener) {
	t.Helper()
	pgtest.Exec(t, admin, producerRights(t, producer))
	err := insertAs(t, dsn, producer)
	if got := l.wakes(t); err == nil && got != 1 {
		t.Errorf("a producer that may not read the lease: %d notifications, want 1", got)
	}
	if err != nil {
		wantInError(t, err, "permission denied for sequence outbox_mask")
	}
	pgtest.Exec(t, admin, outbox.TriggerSQL)
}

func checkRestored(t *testing.T, dsn, producer string, admin *pgx.Conn, l *listener) {
	t.Helper()
	if err := insertAs(t, dsn, producer); err != nil {
		t.Errorf("a producer's task: %v", err)
	}
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications under a restored lease, want 1", got)
	}
	got := maskedBy(t, admin, l, func() {
		if err := insertAs(t, dsn, producer); err != nil {
			t.Errorf("a producer's task under a running lease: %v", err)
		}
	})
	if got != 0 {
		t.Errorf("%d notifications under a running lease, want none", got)
	}
	if applied, err := outbox.Migrate(t.Context(), admin, outbox.MigrateOptions{Schema: "My Outbox-1"}); err != nil || len(applied) != 0 {
		t.Errorf("Migrate = %v, %v, want nothing to do", applied, err)
	}
	if id := pgtest.Value[int64](t, admin, `insert into outbox (kind, payload) values ('d', '{}') returning id`); id < 4 {
		t.Errorf("next id = %d, want a new one", id)
	}
	if err := refusal(t, admin, `insert into outbox (kind, payload) values ('', '{}')`); err.ConstraintName != "outbox_kind" {
		t.Errorf("a bad kind was refused by %q: %v", err.ConstraintName, err)
	}
}
