package pgtest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

// BlockNotifications makes everybody on the server wait who notifies: a session
// of the database postgres keeps the lock that all notifications of the cluster
// take, because its commit waits for a standby that does not exist. So does every
// other commit with synchronous_commit on. The returned function ends it.
func BlockNotifications(tb testing.TB, server *pgserver.Server) (release func()) {
	tb.Helper()
	dsn := server.DSN("postgres")
	admin, stuck := Connect(tb, dsn), Connect(tb, dsn)
	Exec(tb, admin, `create table if not exists elsewhere (n int)`)
	Exec(tb, admin, `alter system set synchronous_standby_names = 'nobody'`)
	Exec(tb, admin, `select pg_reload_conf()`)
	pid := stuck.PgConn().PID()
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		// Until the setting has reached the server's processes, commits return.
		for !stop.Load() {
			if _, err := stuck.Exec(tb.Context(), `begin; insert into elsewhere values (1); select pg_notify('elsewhere', ''); commit`); err != nil {
				ended <- fmt.Errorf("the session that blocks notifications: %w", err)
				return
			}
		}
		ended <- nil
	}()
	for begun := time.Now(); !Value[bool](tb, admin, `select coalesce((select wait_event = 'SyncRep' from pg_stat_activity where pid = $1), false)`, pid); {
		if time.Since(begun) > time.Minute {
			tb.Fatal("pgtest: no commit waits for a standby")
		}
		time.Sleep(5 * time.Millisecond) // between two questions
	}
	return func() {
		tb.Helper()
		stop.Store(true)
		Exec(tb, admin, `alter system reset synchronous_standby_names`)
		Exec(tb, admin, `select pg_reload_conf()`)
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	}
}
