package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// AdvisoryLockClass is the first key of the advisory lock that migrators hold,
// the letters "outb"; the second key is a hash of the schema.
const AdvisoryLockClass int32 = 0x6f757462

// SQLSTATE codes.
const (
	lockNotAvailable      = "55P03"
	deadlockDetected      = "40P01"
	duplicateTable        = "42P07"
	duplicateFunction     = "42723"
	checkViolation        = "23514"
	untranslatable        = "22P05"
	invalidText           = "22P02"
	insufficientPrivilege = "42501"
)

// migrator is one run of Migrate or MigrateDown.
type migrator struct {
	conn     *pgx.Conn
	o        MigrateOptions
	deadline time.Time
}

func newMigrator(conn *pgx.Conn, o MigrateOptions) *migrator {
	return &migrator{conn: conn, o: o, deadline: time.Now().Add(o.LockWait)}
}

// moveTo applies or undoes one migration after the other. Each round reads the
// records anew, because another migrator may have worked in between.
func (m *migrator) moveTo(ctx context.Context, target int, up bool) ([]Migration, error) {
	var moved []Migration
	for {
		var next Migration
		var done bool
		err := m.step(ctx, func(ctx context.Context, tx pgx.Tx) error {
			recorded, exists, err := readRecords(ctx, tx, m.o.Schema)
			if err != nil {
				return err
			}
			if err := checkRecords(recorded); err != nil {
				return err
			}
			version := len(recorded)
			switch {
			case up && version < target:
				next = migrations[version]
				return apply(ctx, tx, next, exists)
			case !up && version > target:
				next = recorded[version-1]
				return undo(ctx, tx, next)
			}
			done = true
			return nil
		})
		if err != nil || done {
			return moved, err
		}
		moved = append(moved, next)
	}
}

// checkRecords makes sure that the records are the first of our migrations.
func checkRecords(recorded []Migration) error {
	for i, r := range recorded {
		if r.Version > len(migrations) {
			return fmt.Errorf("the schema is at version %d (%s), this program knows versions up to %d: use the newer program: %w",
				recorded[len(recorded)-1].Version, recorded[len(recorded)-1].Name, len(migrations), ErrNewerSchema)
		}
		if r.Version != i+1 || r.Name != migrations[i].Name {
			return fmt.Errorf("outbox_migration records version %d as %q where %d %q belongs: it is not this program's, or was edited",
				r.Version, r.Name, i+1, migrations[i].Name)
		}
	}
	return nil
}

// apply runs the file of one migration, together with its record.
func apply(ctx context.Context, tx pgx.Tx, m Migration, bookkeeping bool) error {
	file, text := m.sql(true)
	if !bookkeeping {
		text = createBookkeepingSQL + text
	}
	_, err := tx.Exec(ctx, text+recordSQL(m))
	if code := sqlState(err); code == duplicateTable || code == duplicateFunction {
		return fmt.Errorf("%s: the schema holds something of that name already: choose another schema, or, if the file was run "+
			"by hand, create table outbox_migration and its row as \"migrate print\" shows them: %w", file, err)
	}
	return wrap(err, "%s", file)
}

func undo(ctx context.Context, tx pgx.Tx, m Migration) error {
	file, text := m.sql(false)
	_, err := tx.Exec(ctx, text+forgetSQL(m))
	return wrap(err, "%s", file)
}

// errBusy: another migrator works on this schema.
var errBusy = errors.New("another migration is running")

// step runs work in a transaction, under the migrators' lock. It tries again
// while the locks it needs are held by others, until the deadline. Between two
// tries it holds nothing, so that whoever queued behind it can go on.
func (m *migrator) step(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	for {
		err := m.try(ctx, work)
		var pause time.Duration
		switch code := sqlState(err); {
		case errors.Is(err, errBusy):
			pause = 50 * time.Millisecond
		case code == lockNotAvailable || code == deadlockDetected:
			pause = min(m.o.LockTimeout, 2*time.Second)
		default:
			return wrap(err, "migrate schema %q", m.o.Schema)
		}
		pause = jitter(pause)
		if time.Until(m.deadline) < pause {
			return fmt.Errorf("migrate schema %q: gave up after waiting %v for locks, %v at a time; %s: %w",
				m.o.Schema, m.o.LockWait, m.o.LockTimeout, m.holders(ctx), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("migrate schema %q: %w while waiting: %w", m.o.Schema, ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// try asks for the migrators' lock and never waits for it: a waiting statement
// would hold a snapshot, which deadlocks with building an index concurrently.
func (m *migrator) try(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	tx, err := m.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return wrap(err, "begin")
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, settingsSQL(m.o.Schema, m.o.LockTimeout)); err != nil {
		return wrap(err, "settings")
	}
	var locked bool
	if err := tx.QueryRow(ctx, "select pg_catalog.pg_try_advisory_xact_lock($1::int4, $2::int4)",
		pgx.QueryExecModeExec, AdvisoryLockClass, lockKey(m.o.Schema)).Scan(&locked); err != nil {
		return wrap(err, "taking the migration lock")
	}
	if !locked {
		return errBusy
	}
	if err := work(ctx, tx); err != nil {
		return err
	}
	return wrap(tx.Commit(ctx), "commit")
}

func lockKey(schema string) int32 {
	sum := sha256.Sum256([]byte(schema))
	return int32(binary.BigEndian.Uint32(sum[:])) // #nosec G115 -- all 32 bits are wanted
}

// holders tells in words who holds locks on the outbox's tables.
func (m *migrator) holders(ctx context.Context) string {
	rows, err := m.conn.Query(ctx, `select distinct format('pid %s (%s, %s since %s)', a.pid,
			coalesce(nullif(a.application_name, ''), 'no application_name'), coalesce(a.state, 'state hidden'),
			coalesce(a.xact_start::text, 'unknown'))
		from pg_catalog.pg_locks l
		join pg_catalog.pg_stat_activity a on a.pid = l.pid
		left join pg_catalog.pg_class c on c.oid = l.relation and l.locktype = 'relation'
		left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where l.granted and l.pid <> pg_catalog.pg_backend_pid() and a.datname = pg_catalog.current_database()
		and (n.nspname = $1 and c.relname like 'outbox%'
			or l.locktype = 'advisory' and l.classid::int8 = $2 and l.objid::int8 = $3 and l.objsubid = 2)`,
		pgx.QueryExecModeExec, m.o.Schema, int64(AdvisoryLockClass), int64(uint32(lockKey(m.o.Schema)))) // #nosec G115 -- as pg_locks shows it
	if err != nil {
		return "the holders cannot be listed: " + err.Error()
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return "the holders cannot be listed: " + err.Error()
	case len(found) == 0:
		return "no holder of a lock on the tables is left, try again"
	}
	return "locks are held by " + strings.Join(found, ", ") + ": end these transactions, or allow a longer wait"
}

// jitter spreads those who wait for the same thing: half to one and a half of d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d) // #nosec G404 -- not a secret
}

// sqlState returns the SQLSTATE code of a server's error, or "".
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
