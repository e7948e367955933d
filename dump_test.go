package outbox_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// volatile is what differs between two dumps of equal schemas: the random key
// that newer versions of pg_dump write against injection.
var volatile = regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`)

// catalogs describe, without oids, what a database holds beside the migrations'
// own table.
const catalogs = `
	with namespace as (select * from pg_namespace where nspname !~ '^(pg_|information_schema$)'),
	relation as (select * from pg_class where relnamespace in (select oid from namespace) and relname !~ '^outbox_migration'),
	description (line) as (
		select concat_ws(' ', 'schema', quote_ident(nspname), nspowner::regrole, nspacl, obj_description(oid, 'pg_namespace')) from namespace
		union all
		select concat_ws(' ', relkind, oid::regclass, relowner::regrole, relacl, reloptions, obj_description(oid, 'pg_class'),
			case relkind when 'v' then pg_get_viewdef(oid) when 'i' then pg_get_indexdef(oid) end) from relation
		union all
		select concat_ws(' ', r.oid::regclass, attnum, quote_ident(attname), format_type(atttypid, atttypmod), attnotnull, attidentity, attstorage,
			attacl, pg_get_expr(adbin, adrelid), col_description(r.oid, attnum))
			from relation r join pg_attribute a on a.attrelid = r.oid left join pg_attrdef on adrelid = r.oid and adnum = attnum
			where attnum > 0 and not attisdropped
		union all
		select concat_ws(' ', 'sequence', r.oid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)
			from relation r join pg_sequence on seqrelid = r.oid
		union all
		select concat_ws(' ', 'constraint', r.oid::regclass, quote_ident(conname), pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint'))
			from relation r join pg_constraint c on conrelid = r.oid
		union all
		select concat_ws(' ', pg_get_triggerdef(t.oid), tgenabled, obj_description(t.oid, 'pg_trigger')) from relation r join pg_trigger t on tgrelid = r.oid
		union all
		select concat_ws(' ', pg_get_functiondef(oid), proowner::regrole, proacl, obj_description(oid, 'pg_proc'))
			from pg_proc where pronamespace in (select oid from namespace)
	) select line from description order by line`

// dumpSchema returns the definition of everything in the database, for
// comparisons: what pg_dump writes, else what the catalogs say.
func dumpSchema(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	if pgDumpIsOlder(t) {
		conn := pgtest.Connect(t, dsn)
		pgtest.Exec(t, conn, "set search_path = ''") // to have all names with their schema
		return strings.Join(pgtest.Values[string](t, conn, catalogs), "\n")
	}
	return volatile.ReplaceAllString(tool(t, "", "pg_dump", append(args, "--schema-only", dsn)...), "")
}

// pgDumpIsOlder reports whether pg_dump is of an older version than the server,
// which it would refuse. That is excused only where the server was chosen, as
// make test-matrix does with packages that hold no clients: the versions that a
// system has by itself fit each other.
func pgDumpIsOlder(t *testing.T) bool {
	t.Helper()
	return os.Getenv(pgserver.BindirEnv) != "" && pgDumpVersion(t) < serverVersion(t)
}

func pgDumpVersion(t *testing.T) int {
	t.Helper()
	fields := strings.Fields(tool(t, "", "pg_dump", "--version")) // "pg_dump (PostgreSQL) 15.18", or 19beta1
	version, err := strconv.Atoi(regexp.MustCompile(`^\d+`).FindString(fields[2]))
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func serverVersion(t *testing.T) int {
	t.Helper()
	return pgtest.Value[int](t, pgtest.Connect(t, pgtest.Server(t).DSN("postgres")), `select current_setting('server_version_num')::int / 10000`)
}

// skipWithoutPgDump skips a test of backups where no client fits the server:
// pg_dump refuses a newer server, and what version 17 or newer restores begins
// with a setting that an older server does not have, transaction_timeout.
func skipWithoutPgDump(t *testing.T) {
	t.Helper()
	client, server := pgDumpVersion(t), serverVersion(t)
	if pgDumpIsOlder(t) {
		t.Skipf("pg_dump %d refuses PostgreSQL %d: put the folder of a newer pg_dump, pg_restore and psql first in PATH", client, server)
	}
	if client >= 17 && server < 17 {
		t.Skipf("pg_restore %d cannot restore into PostgreSQL %d: put the folder of pg_dump, pg_restore and psql 14 to 16 first in PATH", client, server)
	}
}
