package outbox_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func wantInError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error = %v, want %q in it", err, part)
		}
	}
}

func begin(t *testing.T, dsn, sql string) pgx.Tx {
	t.Helper()
	tx, err := pgtest.Connect(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return tx
}

func pidOf(tx pgx.Tx) string { return strconv.Itoa(int(tx.Conn().PgConn().PID())) }

const oneTask = `insert into outbox (kind, payload) values ('a', '{}')`

// With nothing to do, Migrate must not even read the table: any lock would wait
// behind the strongest one, and make producers wait behind itself.
func TestNothingToDoTakesNoLock(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	begin(t, dsn, `lock table outbox, outbox_source in access exclusive mode`)
	got, err := outbox.Migrate(t.Context(), pgtest.Connect(t, dsn), outbox.MigrateOptions{LockTimeout: time.Millisecond, LockWait: time.Nanosecond})
	if err != nil || len(got) != 0 {
		t.Errorf("Migrate = %v, %v, want nothing to do", got, err)
	}
}

// A migration that needs a lock gives way to producers again and again until it
// gets it. A producer stays open all the time, so that without giving way the
// second one would wait for ever.
func TestMigrationDoesNotQueueProducers(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	pgtest.Exec(t, pgtest.Connect(t, dsn), `drop trigger outbox_notify on outbox`)
	open := begin(t, dsn, oneTask)
	_, result := blocked(t, t.Context(), dsn, open, outbox.MigrateOptions{LockTimeout: 200 * time.Millisecond, LockWait: time.Hour})

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	second := pgtest.Connect(t, dsn)
	for range 3 {
		if _, err := second.Exec(ctx, oneTask); err != nil {
			t.Fatalf("a producer behind the migration: %v", err)
		}
	}
	select {
	case err := <-result:
		t.Fatalf("the migration ended while a producer held the table: %v", err)
	default:
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("Migrate: %v", err)
	}
	l := listen(t, dsn, "public")
	pgtest.Exec(t, second, oneTask)
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications after the migration, want 1", got)
	}
}

func TestGivingUpNamesTheHolders(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	impatient := outbox.MigrateOptions{LockTimeout: time.Millisecond, LockWait: time.Nanosecond}

	producer := begin(t, dsn, `set application_name = 'slow producer'; `+oneTask)
	_, err := outbox.MigrateDown(t.Context(), pgtest.Connect(t, dsn), 0, impatient)
	wantInError(t, err, all[len(all)-1].Name+".down.sql", "pid "+pidOf(producer), "slow producer", "gave up")
	if err := producer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	sum := lockKeyOf(t, dsn)
	migrator := begin(t, dsn, `select pg_advisory_xact_lock(`+strconv.Itoa(int(outbox.AdvisoryLockClass))+`, `+sum+`)`)
	_, err = outbox.MigrateDown(t.Context(), pgtest.Connect(t, dsn), 0, impatient)
	wantInError(t, err, "another migration is running", "pid "+pidOf(migrator))
	if err := migrator.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	if _, err := outbox.MigrateDown(t.Context(), pgtest.Connect(t, dsn), 0, impatient); err != nil {
		t.Errorf("with nobody in the way: %v", err)
	}
}

// lockKeyOf is the documented second key of the advisory lock for "public".
func lockKeyOf(t *testing.T, dsn string) string {
	t.Helper()
	return pgtest.Value[string](t, pgtest.Connect(t, dsn),
		`select ('x' || encode(substring(sha256('public'), 1, 4), 'hex'))::bit(32)::int::text`)
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	pgtest.Exec(t, pgtest.Connect(t, dsn), `drop trigger outbox_notify on outbox`)
	open := begin(t, dsn, oneTask)
	ctx, cancel := context.WithCancel(t.Context())
	_, result := blocked(t, ctx, dsn, open, outbox.MigrateOptions{LockTimeout: 100 * time.Millisecond, LockWait: time.Hour})
	cancel()
	if err := <-result; err == nil {
		t.Error("Migrate reports success after its context ended")
	}
}

func TestUnusableOptions(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	for _, o := range []outbox.MigrateOptions{
		{LockTimeout: -time.Second}, {LockTimeout: time.Microsecond}, {LockTimeout: 2 * time.Hour}, {LockWait: -1},
	} {
		if _, err := outbox.Migrate(t.Context(), conn, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestNoTriggerLeavesTheTriggerAway(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	conn := pgtest.Connect(t, dsn)
	o := outbox.MigrateOptions{NoTrigger: true}
	if _, err := outbox.Migrate(t.Context(), conn, o); err != nil {
		t.Fatal(err)
	}
	text, err := outbox.MigrationSQL(o)
	if err != nil || strings.Contains(text, "outbox_notify") {
		t.Errorf("the printed SQL has the trigger: %v", err)
	}
	l := listen(t, dsn, "public")
	pgtest.Exec(t, conn, oneTask)
	if got := l.wakes(t); got != 0 {
		t.Errorf("%d notifications, want none", got)
	}
	migrate(t, conn, "public")
	pgtest.Exec(t, conn, oneTask)
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications after Migrate with the trigger, want 1", got)
	}
	if _, err := outbox.MigrateDown(t.Context(), conn, 0, o); err != nil {
		t.Errorf("way down: %v", err)
	}
}
