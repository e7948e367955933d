package pgtest_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			conn := pgtest.Connect(t, pgtest.NewDB(t))
			pgtest.Exec(t, conn, `insert into outbox (kind, payload) values ('a', '1')`)
			if n := pgtest.Value[int](t, conn, `select count(*) from outbox`); n != 1 {
				t.Errorf("%d tasks, want the one of this test", n)
			}
		})
	}
}

func TestDatabaseIsGoneAfterTheTest(t *testing.T) {
	t.Parallel()
	const databases = `select count(*) from pg_database where datname = $1`
	admin := pgtest.Connect(t, pgtest.Server(t).DSN("postgres"))
	var name string
	outer := t
	t.Run("inner", func(t *testing.T) {
		// Left connected on purpose: closed only after the drop.
		conn := pgtest.Connect(outer, pgtest.NewEmptyDB(t))
		name = pgtest.Value[string](t, conn, `select current_database()::text`)
		if n := pgtest.Value[int](t, admin, databases, name); n != 1 {
			t.Errorf("%d databases named %s", n, name)
		}
	})
	if n := pgtest.Value[int](t, admin, databases, name); n != 0 {
		t.Errorf("database %s is still there", name)
	}
}
