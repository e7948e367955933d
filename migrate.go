package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Defaults of [MigrateOptions].
const (
	DefaultSchema      = "public"
	DefaultLockTimeout = 2 * time.Second
	DefaultLockWait    = time.Minute
)

// MigrateOptions says where and how patiently to migrate. The zero value takes
// the default of each field.
type MigrateOptions struct {
	// Schema is the schema of the outbox: any PostgreSQL name of at most 63
	// bytes, taken literally. [Migrate] creates it if it is missing. Default
	// "public".
	Schema string
	// LockTimeout bounds each single wait for a table lock, at least 1 ms.
	// A migration that waits for a lock makes the producers behind it wait
	// too, so it gives up after this time, lets them pass, and tries again.
	// Default 2 s.
	LockTimeout time.Duration
	// LockWait bounds all waiting together, for table locks and for other
	// migrators. Default 1 min.
	LockWait time.Duration
	// Wake is what shall wake the dispatchers: it is installed, and what another
	// wake needs is removed. Default [WakeNotify].
	Wake Wake
	// NoTrigger leaves trigger and publication as they are, whatever Wake says.
	NoTrigger bool
}

func (o MigrateOptions) withDefaults() (MigrateOptions, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	o.LockTimeout = cmp.Or(o.LockTimeout, DefaultLockTimeout)
	o.LockWait = cmp.Or(o.LockWait, DefaultLockWait)
	o.Wake = cmp.Or(o.Wake, WakeNotify)
	if !slices.Contains([]Wake{WakeNotify, WakeWAL, WakeAuto, WakePoll}, o.Wake) {
		return o, fmt.Errorf("wake %.80q must be %q, %q, %q or %q", o.Wake, WakeNotify, WakeWAL, WakeAuto, WakePoll)
	}
	if len(o.Schema) > 63 || strings.ContainsRune(o.Schema, 0) || !utf8.ValidString(o.Schema) {
		return o, fmt.Errorf("schema %.80q must be a PostgreSQL name of 1 to 63 bytes of UTF-8: choose a shorter or plainer one", o.Schema)
	}
	if o.LockTimeout < time.Millisecond || o.LockTimeout > time.Hour {
		return o, fmt.Errorf("lock timeout %v must be 1 ms to 1 h: a second or two is usual", o.LockTimeout)
	}
	if o.LockWait < 0 {
		return o, fmt.Errorf("lock wait %v must not be negative", o.LockWait)
	}
	return o, nil
}

// ErrNewerSchema is wrapped by the errors of [Migrate] and [MigrateDown] when
// the database was migrated by a newer version of this program.
var ErrNewerSchema = errors.New("the database is newer than this program")

// Migrate brings the outbox up to date: it creates the schema if needed, applies
// each missing migration in a transaction of its own together with its record,
// and installs what the wake needs ([TriggerSQL] or [PublicationSQL]). It returns
// the steps that it applied, none when there was nothing to do; then it took no lock
// on the table. When it fails, the steps it returns stay applied, the failed one left no trace, and it can be run again.
//
// Any number of processes may call it at once: one works, the others wait. conn
// must not be in a transaction, and may lead through a transaction pooler.
func Migrate(ctx context.Context, conn *pgx.Conn, o MigrateOptions) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := newMigrator(conn, o)
	if err := m.step(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, createSchemaSQL(o.Schema))
		return wrap(err, "creating the schema")
	}); err != nil {
		return nil, err
	}
	applied, err := m.moveTo(ctx, len(migrations), true)
	if err != nil || o.NoTrigger {
		return applied, err
	}
	return applied, m.step(ctx, func(ctx context.Context, tx pgx.Tx) error {
		file, text := o.Wake.sql()
		_, err := tx.Exec(ctx, text)
		if (o.Wake == WakeWAL || o.Wake == WakeAuto) && sqlState(err) == insufficientPrivilege {
			return fmt.Errorf("%s: a publication needs the right to create in the database, and the owner of the table: "+
				"grant create on database ... to this role, or choose the wake %q: %w", file, WakeNotify, err)
		}
		return wrap(err, "%s", file)
	})
}

// MigrateDown undoes the migrations above version target, newest first, and
// returns those it undid. Target 0 removes the outbox, with every task in it,
// and the records of the migrations, and leaves the empty schema.
func MigrateDown(ctx context.Context, conn *pgx.Conn, target int, o MigrateOptions) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if target < 0 || target > len(migrations) {
		return nil, fmt.Errorf("target version %d must be 0 to %d", target, len(migrations))
	}
	return newMigrator(conn, o).moveTo(ctx, target, false)
}

// MigrationStatus returns every migration that this program knows, and any
// newer one that the database names, oldest first. It changes nothing and needs
// no more than the right to read the records.
func MigrationStatus(ctx context.Context, conn *pgx.Conn, o MigrateOptions) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	recorded, _, err := readRecords(ctx, conn, o.Schema)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(migrations)
	for _, r := range recorded {
		if r.Version <= len(all) {
			all[r.Version-1].AppliedAt = r.AppliedAt
		} else {
			all = append(all, r)
		}
	}
	return all, nil
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readRecords returns the applied migrations, oldest first, and whether the
// table of records exists.
func readRecords(ctx context.Context, q querier, schema string) (recorded []Migration, exists bool, err error) {
	const table = "outbox_migration"
	err = q.QueryRow(ctx, `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = $1 and c.relname = $2)`, pgx.QueryExecModeExec, schema, table).Scan(&exists)
	if err != nil || !exists {
		return nil, false, wrap(err, "looking for the records of migrations in schema %q", schema)
	}
	rows, err := q.Query(ctx, "select version, name, applied_at from "+pgx.Identifier{schema, table}.Sanitize()+" order by version",
		pgx.QueryExecModeExec)
	if err == nil {
		recorded, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Migration])
	}
	return recorded, true, wrap(err, "reading the records of migrations in schema %q", schema)
}

func wrap(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(a, err)...)
}
