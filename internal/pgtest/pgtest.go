// Package pgtest gives each test a PostgreSQL database of its own, migrated and
// empty, on a real server that the test binary shares.
//
// The package under test calls [Main] from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

const template = "outbox_template"

// cluster is the server of this test binary.
type cluster struct {
	once   sync.Once
	server *pgserver.Server
	err    error
	count  atomic.Int64 // databases made
}

// shared is set while Main runs.
var shared *cluster

// Main runs the tests and returns the exit code. The first test that needs the
// server starts it, Main ends it. The parameter is a *testing.M, or a wrapper
// of one.
func Main(m interface{ Run() int }) int {
	shared = &cluster{}
	defer func() {
		if shared.server == nil {
			return
		}
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: closing the server:", err)
		}
	}()
	return m.Run()
}

// Server returns the server that the tests of this binary share. It must not be
// stopped; see [OwnServer].
func Server(tb testing.TB) *pgserver.Server {
	tb.Helper()
	if shared == nil {
		tb.Fatal("pgtest: TestMain must call pgtest.Main")
	}
	shared.once.Do(shared.start)
	if shared.err != nil {
		tb.Fatalf("pgtest: no PostgreSQL for the tests: %v", shared.err)
	}
	return shared.server
}

func (c *cluster) start() {
	// Not the context of the first test, which ends before the others.
	ctx := context.Background()
	c.server, c.err = pgserver.Start(ctx, pgserver.Options{})
	if c.err == nil {
		c.err = c.makeTemplate(ctx)
	}
}

// makeTemplate migrates a database once, so that each test copies files instead.
func (c *cluster) makeTemplate(ctx context.Context) error {
	if err := run(ctx, c.server.DSN("postgres"), "create database "+template); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, c.server.DSN(template))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = outbox.Migrate(ctx, conn, outbox.MigrateOptions{})
	return err
}

// NewDB makes a database with an outbox in schema public and returns its DSN,
// as a superuser. It is dropped when the test ends, whoever is connected.
func NewDB(tb testing.TB) string {
	tb.Helper()
	return newDB(tb, template)
}

// NewEmptyDB is [NewDB] without an outbox.
func NewEmptyDB(tb testing.TB) string {
	tb.Helper()
	return newDB(tb, "template1")
}

func newDB(tb testing.TB, from string) string {
	tb.Helper()
	server := Server(tb)
	admin := server.DSN("postgres")
	name := fmt.Sprintf("test_%d", shared.count.Add(1))
	if err := run(tb.Context(), admin, "create database "+name+" template "+from); err != nil {
		tb.Fatalf("pgtest: making a database: %v", err)
	}
	tb.Cleanup(func() {
		if err := run(context.WithoutCancel(tb.Context()), admin, "drop database "+name+" with (force)"); err != nil {
			tb.Errorf("pgtest: dropping the database: %v", err)
		}
	})
	return server.DSN(name)
}

// run uses a connection of its own: a pool would leave goroutines that a test
// looking for leaked ones would find.
func run(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	_ = conn.Close(ctx)
	return err
}

// OwnServer starts a server for one test that stops or kills it; its databases
// are empty. It is closed when the test ends.
func OwnServer(tb testing.TB, o pgserver.Options) *pgserver.Server {
	tb.Helper()
	server, err := pgserver.Start(tb.Context(), o)
	if err != nil {
		tb.Fatalf("pgtest: starting a server: %v", err)
	}
	tb.Cleanup(func() {
		if err := server.Close(); err != nil {
			tb.Errorf("pgtest: closing the server: %v", err)
		}
	})
	return server
}

// Migrate makes an outbox in the schema of the database.
func Migrate(tb testing.TB, dsn, schema string) {
	tb.Helper()
	if _, err := outbox.Migrate(tb.Context(), Connect(tb, dsn), outbox.MigrateOptions{Schema: schema}); err != nil {
		tb.Fatal(err)
	}
}

// Connect returns a connection that is closed when the test ends.
func Connect(tb testing.TB, dsn string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), dsn)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

// Pool returns a pool that is closed when the test ends.
func Pool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), dsn)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// Exec runs SQL that must succeed. Without arguments it may hold several
// statements.
func Exec(tb testing.TB, conn *pgx.Conn, sql string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%.200s: %v", sql, err)
	}
}

// Value returns the one value of the one row that the query yields.
func Value[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	rows, err := conn.Query(tb.Context(), sql, args...)
	if err != nil {
		tb.Fatalf("%.200s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		tb.Fatalf("%.200s: %v", sql, err)
	}
	return v
}

// Values returns the one column of all rows that the query yields.
func Values[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) []T {
	tb.Helper()
	rows, err := conn.Query(tb.Context(), sql, args...)
	if err != nil {
		tb.Fatalf("%.200s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		tb.Fatalf("%.200s: %v", sql, err)
	}
	return all
}
