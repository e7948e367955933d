package outbox

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Migrations holds the files migrations/NNNN_name.up.sql and .down.sql: plain
// SQL, for those who run migrations with a tool of their own. Nothing in them
// names a schema; search_path chooses it.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// TriggerSQL is trigger.sql: plain SQL that makes or renews the trigger that
// wakes a dispatcher. It may be run again at any time, and takes no lock on the
// table while the trigger is as it should be.
//
//go:embed trigger.sql
var TriggerSQL string

// PublicationSQL is publication.sql: plain SQL that makes or renews the publication
// that dispatchers follow which are woken by the write-ahead log. It may be run again
// at any time.
//
//go:embed publication.sql
var PublicationSQL string

// Migration is one step of the schema.
type Migration struct {
	// Version counts from 1, without gaps.
	Version int
	// Name is the name of the file without ".up.sql", such as "0001_outbox".
	Name string
	// AppliedAt is when the step was applied, by the database's clock; zero
	// if it was not. Only [MigrationStatus] fills it in.
	AppliedAt time.Time
}

const (
	upSuffix   = ".up.sql"
	downSuffix = ".down.sql"
)

// migrations are the steps that this program knows, oldest first.
var migrations = mustReadMigrations(Migrations)

// mustReadMigrations panics on a wrong set of files: it was compiled in, so
// every run of every test would show it.
func mustReadMigrations(files fs.FS) []Migration {
	paths, err := fs.Glob(files, "migrations/*"+upSuffix)
	if err != nil {
		panic(err)
	}
	var all []Migration
	for i, path := range paths {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "migrations/"), upSuffix)
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 || len(number) != 4 {
			panic(fmt.Sprintf("%s: the number must be %04d: migrations are numbered without gaps", path, i+1))
		}
		if _, err := fs.Stat(files, "migrations/"+name+downSuffix); err != nil {
			panic(fmt.Sprintf("%s has no way back: %v", path, err))
		}
		all = append(all, Migration{Version: i + 1, Name: name})
	}
	return all
}

// sql returns the text of the step's file. up chooses the direction.
func (m Migration) sql(up bool) (file, text string) {
	file = m.Name + downSuffix
	if up {
		file = m.Name + upSuffix
	}
	b, err := Migrations.ReadFile("migrations/" + file)
	if err != nil {
		panic(err) // mustReadMigrations saw the file
	}
	return file, string(b)
}

// The statements around the files. Migrate runs them, MigrationSQL prints them.

// createSchemaSQL asks before it creates: "if not exists" alone needs the
// right to create schemas even where there is nothing to create.
func createSchemaSQL(schema string) string {
	return "do " + quoteLiteral(fmt.Sprintf(`
begin
  if not exists (select from pg_catalog.pg_namespace where nspname = %s) then
    create schema %s;
  end if;
end
`, quoteLiteral(schema), quoteIdentifier(schema))) + ";\n"
}

const createBookkeepingSQL = `create table outbox_migration (
  version int primary key,
  name text not null,
  applied_at timestamptz not null default now()
);
comment on table outbox_migration is 'Which steps of the outbox schema were applied.';
`

func recordSQL(m Migration) string {
	return fmt.Sprintf("insert into outbox_migration (version, name) values (%d, %s);\n", m.Version, quoteLiteral(m.Name))
}

func forgetSQL(m Migration) string {
	if m.Version == 1 {
		return "drop table outbox_migration;\n"
	}
	return fmt.Sprintf("delete from outbox_migration where version = %d;\n", m.Version)
}

// settingsSQL begins each transaction. Only the outbox's own schema is searched,
// so that nothing of another schema is taken for ours, and a backslash is one.
func settingsSQL(schema string, lockTimeout time.Duration) string {
	return fmt.Sprintf("set local standard_conforming_strings = on;\nset local search_path = %s;\nset local lock_timeout = '%dms';\n",
		quoteIdentifier(schema), lockTimeout.Milliseconds())
}

func quoteIdentifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteLiteral relies on settingsSQL, and on withDefaults for the NUL.
func quoteLiteral(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// MigrationSQL returns, as text for psql, exactly what [Migrate] runs in an
// empty database: the schema, each migration in a transaction with its record,
// and what wakes the dispatchers. Of the options, Schema, LockTimeout, Wake and
// NoTrigger count.
func MigrationSQL(o MigrateOptions) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- The outbox in schema %s. Run it with: psql -v ON_ERROR_STOP=1\n", strings.Map(oneLine, o.Schema))
	transaction := func(title, text string) {
		fmt.Fprintf(&b, "\n-- %s\nbegin;\n%s%scommit;\n", title, settingsSQL(o.Schema, o.LockTimeout), text)
	}
	transaction("schema", createSchemaSQL(o.Schema))
	for _, m := range migrations {
		file, text := m.sql(true)
		if m.Version == 1 {
			text = createBookkeepingSQL + text
		}
		transaction("migrations/"+file, text+recordSQL(m))
	}
	if !o.NoTrigger {
		file, text := o.Wake.sql()
		transaction(file, text)
	}
	return b.String(), nil
}

// oneLine keeps a schema name with line breaks inside its comment.
func oneLine(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}
