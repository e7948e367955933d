package outbox_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// A transaction that notified cannot be prepared: PostgreSQL refuses, and rolls it
// back as a whole. It depends on the lease, so such producers need an outbox
// without the trigger.
func TestTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "10"}})
	dsn := server.DSN("postgres")
	pgtest.Migrate(t, dsn, "public")
	admin, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	pgtest.Exec(t, admin, `create table orders (n int)`)
	tasks := func(want int, when string) {
		t.Helper()
		if got := pgtest.Value[int](t, admin, `select count(*) from outbox`); got != want {
			t.Errorf("%s: %d tasks, want %d", when, got, want)
		}
		if got := pgtest.Value[int](t, admin, `select count(*) from orders`); got != want {
			t.Errorf("%s: %d orders, want %d", when, got, want)
		}
	}
	// prepare runs the first phase; nobody is connected when it is over.
	prepare := func(name string) error {
		conn := pgtest.Connect(t, dsn)
		pgtest.Exec(t, conn, `begin; insert into orders values (1);`+oneTask)
		_, err := conn.Exec(t.Context(), `prepare transaction '`+name+`'`)
		if closeErr := conn.Close(t.Context()); closeErr != nil {
			t.Error(closeErr)
		}
		return err
	}

	err := prepare("unmasked")
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "0A000" || !strings.Contains(pgErr.Message, "NOTIFY") {
		t.Errorf("prepared while unmasked: error = %v, want PostgreSQL's refusal", err)
	}
	if n := pgtest.Value[int](t, admin, `select count(*) from pg_prepared_xacts`); n != 0 {
		t.Errorf("the refusal left %d prepared transactions", n)
	}
	if got := l.wakes(t); got != 0 {
		t.Errorf("%d notifications of a refused transaction", got)
	}
	tasks(0, "after the refusal")

	got := maskedBy(t, admin, l, func() {
		pgtest.Exec(t, admin, `delete from orders; delete from outbox`)
		rollbackPrepared(t, admin)
		err = prepare("masked")
	})
	if err != nil || got != 0 {
		t.Errorf("prepared while masked: %v, %d notifications", err, got)
	}
	tasks(0, "between the phases")
	// It counts as running, so a dispatcher that goes to sleep waits for it.
	x := pgtest.Value[int64](t, admin, `select pg_current_xact_id()::text::bigint`)
	const oldest = `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint`
	if xmin := pgtest.Value[int64](t, admin, oldest); xmin >= x {
		t.Errorf("the oldest running transaction is %d, want the prepared one, below %d", xmin, x)
	}
	pgtest.Exec(t, admin, `commit prepared 'masked'`)
	tasks(1, "after the second phase")
	eventually(t, "no transaction as old as the prepared one runs", func() bool {
		return pgtest.Value[int64](t, admin, oldest) > x
	})

	pgtest.Exec(t, admin, `drop trigger outbox_notify on outbox`)
	if err := prepare("no trigger"); err != nil {
		t.Errorf("prepared without the trigger: %v", err)
	}
	pgtest.Exec(t, admin, `commit prepared 'no trigger'`)
	tasks(2, "without the trigger")
	if got := l.wakes(t); got != 0 {
		t.Errorf("%d notifications without the trigger", got)
	}
}

func rollbackPrepared(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, gid := range pgtest.Values[string](t, conn, `select gid from pg_prepared_xacts`) {
		pgtest.Exec(t, conn, `rollback prepared '`+gid+`'`)
	}
}

// The apply process of a subscription runs no statement triggers, whatever they
// are set to.
func TestReplicatedTasksAreNotNotified(t *testing.T) {
	t.Parallel()
	from, to := pgtest.NewDB(t), pgtest.NewDB(t)
	publisher, subscriber, l := pgtest.Connect(t, from), pgtest.Connect(t, to), listen(t, to, "public")
	name := publisher.Config().Database + "_tasks"
	pgtest.Exec(t, subscriber, `alter table outbox enable always trigger outbox_notify`)
	pgtest.Exec(t, publisher, `create publication `+name+` for table outbox`)
	// A subscription within one server would wait for itself if it made the slot.
	pgtest.Exec(t, publisher, `select pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	pgtest.Exec(t, subscriber, `create subscription `+name+` connection '`+libpq(publisher)+`' publication `+name+` with (create_slot = false, copy_data = false)`)
	// Drops the slot too; the databases could not be dropped with either.
	t.Cleanup(func() {
		if _, err := subscriber.Exec(context.WithoutCancel(t.Context()), `drop subscription `+name); err != nil {
			t.Error(err)
		}
	})
	pgtest.Exec(t, publisher, oneTask)
	eventually(t, "the task is replicated", func() bool {
		return pgtest.Value[int](t, subscriber, `select count(*) from outbox`) == 1
	})
	if got := l.wakes(t); got != 0 {
		t.Errorf("%d notifications, want none", got)
	}
}

// libpq returns the address of the connection's database for a subscription.
func libpq(conn *pgx.Conn) string {
	c := conn.Config()
	return "host=" + c.Host + " port=" + strconv.Itoa(int(c.Port)) + " user=" + c.User + " dbname=" + c.Database
}
