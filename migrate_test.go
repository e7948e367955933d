package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

var (
	all        = steps()
	ignoreTime = cmpopts.IgnoreFields(outbox.Migration{}, "AppliedAt")
)

// steps are the migrations that the files say there are, oldest first.
func steps() []outbox.Migration {
	files, err := fs.Glob(outbox.Migrations, "migrations/*.up.sql")
	if err != nil {
		panic(err)
	}
	var found []outbox.Migration
	for i, file := range files {
		found = append(found, outbox.Migration{Version: i + 1, Name: strings.TrimSuffix(path.Base(file), ".up.sql")})
	}
	return found
}

// undone are the steps that a way down to version target undoes, in its order.
func undone(target int) []outbox.Migration {
	back := slices.Clone(all[target:])
	slices.Reverse(back)
	return back
}

// future is a record of a newer program.
func future() outbox.Migration {
	v := len(all) + 1
	return outbox.Migration{Version: v, Name: fmt.Sprintf("%04d_future", v)}
}

// objects counts what the schema holds: relations, functions and types.
const objects = `select (select count(*) from pg_class where relnamespace = $1::regnamespace)
	+ (select count(*) from pg_proc where pronamespace = $1::regnamespace)
	+ (select count(*) from pg_type where typnamespace = $1::regnamespace)`

func TestUpDownUp(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"public", "My Outbox-1"} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.NewEmptyDB(t)
			conn := pgtest.Connect(t, dsn)
			o := outbox.MigrateOptions{Schema: schema}
			quoted := pgx.Identifier{schema}.Sanitize()
			var first string
			for range 2 {
				if got, err := outbox.Migrate(t.Context(), conn, o); err != nil || !cmp.Equal(got, all, ignoreTime) {
					t.Fatalf("Migrate = %v, %v, want %v", got, err, all)
				}
				if got, err := outbox.Migrate(t.Context(), conn, o); err != nil || len(got) != 0 {
					t.Fatalf("second Migrate = %v, %v, want nothing to do", got, err)
				}
				dump := dumpSchema(t, dsn)
				if first != "" && first != dump {
					t.Errorf("the second way up made something else:\n%s", cmp.Diff(first, dump))
				}
				first = dump
				if got, err := outbox.MigrateDown(t.Context(), conn, len(all), o); err != nil || len(got) != 0 {
					t.Errorf("MigrateDown to the present version = %v, %v", got, err)
				}
				if got, err := outbox.MigrateDown(t.Context(), conn, 0, o); err != nil || !cmp.Equal(got, undone(0), ignoreTime) {
					t.Fatalf("MigrateDown = %v, %v, want %v", got, err, undone(0))
				}
				if n := pgtest.Value[int](t, conn, objects, quoted); n != 0 {
					t.Errorf("%d objects are left after the way down", n)
				}
			}
			if got, err := outbox.MigrateDown(t.Context(), conn, 0, o); err != nil || len(got) != 0 {
				t.Errorf("MigrateDown of nothing = %v, %v", got, err)
			}
			if got, err := outbox.MigrateDown(t.Context(), conn, 1, o); err != nil || len(got) != 0 {
				t.Errorf("MigrateDown never goes up: %v, %v", got, err)
			}
			for _, target := range []int{-1, len(all) + 1} {
				if _, err := outbox.MigrateDown(t.Context(), conn, target, o); err == nil {
					t.Errorf("MigrateDown to %d: no error", target)
				}
			}
		})
	}
}

func TestMigrationStatus(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	status := func() []outbox.Migration {
		t.Helper()
		got, err := outbox.MigrationStatus(t.Context(), conn, outbox.MigrateOptions{Schema: "s"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := status(); !cmp.Equal(got, all) {
		t.Errorf("status of nothing = %v, want %v, not applied", got, all)
	}
	if n := pgtest.Value[int](t, conn, `select count(*) from pg_namespace where nspname = 's'`); n != 0 {
		t.Error("asking for the status made the schema")
	}
	migrate(t, conn, "s")
	if got := status(); !cmp.Equal(got, all, ignoreTime) || slices.ContainsFunc(got, func(m outbox.Migration) bool { return m.AppliedAt.IsZero() }) {
		t.Errorf("status = %v, want %v, applied", got, all)
	}
	pgtest.Exec(t, conn, `insert into s.outbox_migration values ($1, $2)`, future().Version, future().Name)
	want := append(slices.Clone(all), future())
	if got := status(); !cmp.Equal(got, want, ignoreTime) {
		t.Errorf("status = %v, want %v", got, want)
	}
}

func TestForeignRecordsAreRefused(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn := pgtest.Connect(t, dsn)
	run := func() []error {
		_, up := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{})
		_, down := outbox.MigrateDown(t.Context(), conn, 0, outbox.MigrateOptions{})
		return []error{up, down}
	}
	pgtest.Exec(t, conn, `insert into outbox_migration values ($1, $2)`, future().Version, future().Name)
	before := dumpSchema(t, dsn)
	for _, err := range run() {
		if !errors.Is(err, outbox.ErrNewerSchema) {
			t.Errorf("error = %v, want ErrNewerSchema", err)
		}
	}
	pgtest.Exec(t, conn, `delete from outbox_migration where version = $1`, future().Version)
	pgtest.Exec(t, conn, `update outbox_migration set name = '0001_other' where version = 1`)
	for _, err := range run() {
		if err == nil || errors.Is(err, outbox.ErrNewerSchema) {
			t.Errorf("records of another program: error = %v", err)
		}
	}
	if diff := cmp.Diff(before, dumpSchema(t, dsn)); diff != "" {
		t.Errorf("a refused run changed the schema:\n%s", diff)
	}
}

func TestOutboxMadeByHandIsExplained(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	up, err := outbox.Migrations.ReadFile("migrations/0001_outbox.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	psql(t, dsn, string(up))
	_, err = outbox.Migrate(t.Context(), pgtest.Connect(t, dsn), outbox.MigrateOptions{})
	wantInError(t, err, "0001_outbox.up.sql", "migrate print", "outbox_migration")
	// The remedy that the message gives works.
	psql(t, dsn, `create table outbox_migration (version int primary key, name text not null, applied_at timestamptz not null default now());
		insert into outbox_migration (version, name) values (1, '0001_outbox');`)
	if got, err := outbox.Migrate(t.Context(), pgtest.Connect(t, dsn), outbox.MigrateOptions{}); err != nil || !cmp.Equal(got, all[1:], ignoreTime) {
		t.Errorf("Migrate = %v, %v, want the rest: %v", got, err, all[1:])
	}
}

func TestFiveMigratorsAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewEmptyDB(t)
	conns := make([]*pgx.Conn, 5)
	for i := range conns {
		conns[i] = pgtest.Connect(t, dsn)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var applied []outbox.Migration
	for _, conn := range conns {
		wg.Go(func() {
			got, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: "My Outbox-1"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("Migrate: %v", err)
			}
			applied = append(applied, got...)
		})
	}
	wg.Wait()
	slices.SortFunc(applied, func(a, b outbox.Migration) int { return a.Version - b.Version })
	if !cmp.Equal(applied, all, ignoreTime) {
		t.Errorf("together they applied %v, want each step once", applied)
	}
}

// blocked starts a migration, and waits until it is in the middle of its work:
// blocker holds an uncommitted table of a name that the migration needs.
func blocked(t *testing.T, ctx context.Context, dsn string, blocker pgx.Tx, o outbox.MigrateOptions) (pid uint32, result chan error) {
	t.Helper()
	conn := pgtest.Connect(t, dsn)
	pid, result = conn.PgConn().PID(), make(chan error, 1)
	go func() {
		_, err := outbox.Migrate(ctx, conn, o)
		result <- err
	}()
	watch := pgtest.Connect(t, dsn)
	eventually(t, "the migration waits for a lock", func() bool {
		select {
		case err := <-result:
			t.Fatalf("the migration ended: %v", err)
		default:
		}
		return pgtest.Value[bool](t, watch, `select $1 = any(pg_blocking_pids($2::int))`, blocker.Conn().PgConn().PID(), pid)
	})
	return pid, result
}

func TestMigrationKilledHalfWay(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(t *testing.T, admin *pgx.Conn, pid uint32, cancel func()){
		"backend terminated": func(t *testing.T, admin *pgx.Conn, pid uint32, _ func()) {
			pgtest.Exec(t, admin, `select pg_terminate_backend($1::int)`, pid)
		},
		"statement cancelled": func(t *testing.T, admin *pgx.Conn, pid uint32, _ func()) {
			pgtest.Exec(t, admin, `select pg_cancel_backend($1::int)`, pid)
		},
		"context cancelled": func(_ *testing.T, _ *pgx.Conn, _ uint32, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.NewEmptyDB(t)
			admin := pgtest.Connect(t, dsn)
			pgtest.Exec(t, admin, `create schema s`)
			blocker, err := pgtest.Connect(t, dsn).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := blocker.Exec(t.Context(), `create table s.outbox_source ()`); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pid, result := blocked(t, ctx, dsn, blocker, outbox.MigrateOptions{Schema: "s", LockTimeout: time.Hour, LockWait: 2 * time.Hour})
			kill(t, admin, pid, cancel)
			if err := <-result; err == nil {
				t.Error("the killed migration reports success")
			}
			if err := blocker.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the backend is gone or idle", func() bool {
				return pgtest.Value[bool](t, admin, `select not exists (select from pg_stat_activity where pid = $1::int and state = 'active')`, pid)
			})
			if n := pgtest.Value[int](t, admin, objects, "s"); n != 0 {
				t.Errorf("the killed migration left %d objects", n)
			}
			if got, err := outbox.Migrate(t.Context(), admin, outbox.MigrateOptions{Schema: "s"}); err != nil || !cmp.Equal(got, all, ignoreTime) {
				t.Errorf("Migrate after the kill = %v, %v", got, err)
			}
		})
	}
}
