package dispatcher

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// refused runs a source that cannot work, twice, and checks what it says.
func refused(t *testing.T, source *Replication, want string) {
	t.Helper()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := source.Run(ctx, func() { t.Error("a wake") })
		cancel()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestReplicationRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings map[string]string
		sql      string // done before
		want     string
	}{
		"wal_level": {
			settings: map[string]string{"wal_level": "replica"},
			want:     "the server does not decode its log: set wal_level = logical and max_replication_slots above 0, restart it, and connect to the primary, or choose another wake source (",
		},
		"no slot left": {
			settings: map[string]string{"max_replication_slots": "1"},
			sql:      `select pg_create_physical_replication_slot('taken')`,
			want:     "the server has no replication slot left: raise max_replication_slots, or drop slots that nobody uses, or choose another wake source (",
		},
		"no walsender left": {
			settings: map[string]string{"max_wal_senders": "0", "wal_level": "logical"},
			want:     "the server has no walsender or no connection left: raise max_wal_senders or max_connections, or end what holds them, or choose another wake source (",
		},
		"no publication": {
			sql:  `drop publication outbox_wake`,
			want: `there is no publication "outbox_wake" in database "postgres": run 'dispatcher migrate up' with the --wake of the dispatchers`,
		},
		"publication without table": {
			sql:  `alter publication outbox_wake drop table outbox`,
			want: `publication "outbox_wake" publishes no inserts of any table: run 'dispatcher migrate up' with the --wake of the dispatchers`,
		},
		"publication without inserts": {
			sql:  `alter publication outbox_wake set (publish = 'delete')`,
			want: `publication "outbox_wake" publishes no inserts of any table: run 'dispatcher migrate up' with the --wake of the dispatchers`,
		},
		"every name is a standby's": {
			settings: map[string]string{"synchronous_standby_names": "FIRST 1 (nobody, *)", "synchronous_commit": "local"},
			want:     "synchronous_standby_names contains *, so that the server would count the dispatcher as a synchronous standby: list the names of the standbys there, or choose another wake source",
		},
		"no connection left": {
			sql:  `create role walker login replication connection limit 0`,
			want: "the server has no walsender or no connection left",
		},
		"no right to replicate": {
			sql:  `create role walker login`,
			want: `role "walker" may not replicate: run 'alter role ... replication' (a managed service has a role to grant for it, such as rds_replication), or choose another wake source (`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := serverRig(t, c.settings)
			source := replication(r)
			r.exec(c.sql)
			if strings.Contains(c.sql, "role walker") {
				source.Config.User = "walker"
			}
			refused(t, source, c.want)
			eventually(t, "no slot is left", noSlot(r))
		})
	}
}

// A role needs REPLICATION and nothing else, not even to be told whom it waits for.
func TestReplicationPrivileges(t *testing.T) {
	t.Parallel()
	r, _ := serverRig(t, nil)
	source := replication(r)
	r.exec(`create role walker login replication`)
	source.Config.User = "walker"
	told := make(chan string, 100)
	source.OnWaiting = func(detail string) { told <- detail }
	writer := pgtest.Connect(t, r.dsn)
	pgtest.Exec(t, writer, `begin; insert into outbox (kind, payload) values ('a', '1')`)
	run := runSource(t, source)
	if detail, want := <-told, fmt.Sprintf("now for that of process %d", writer.PgConn().PID()); !strings.HasSuffix(detail, want) {
		t.Errorf("%q, want %q at its end", detail, want)
	}
	pgtest.Exec(t, writer, `commit`)
	run.await("when subscribed")
	r.insert("a", `1`)
	run.await("for an insert")
}

// Through a pooler there is no replication.
func TestReplicationThroughPgBouncer(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	b := startPgBouncer(t, r.dsn)
	source := replication(r)
	source.Config = parsed(t, b.dsn)
	refused(t, source, "replication needs a direct connection, and a pooler or proxy is in between: give the address of the server itself, or choose another wake source (")
}

// A publication that goes while the source runs: the source ends with the next
// insert, and says why. From PostgreSQL 18 on the server only warns.
func TestReplicationLosesItsPublication(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	if query[int](r, `select current_setting('server_version_num')::int`) >= 180_000 {
		return
	}
	run := runSource(t, replication(r))
	run.await("when subscribed")
	r.exec(`drop publication outbox_wake`)
	r.insert("a", `1`)
	const want = `there is no publication "outbox_wake" in database "`
	if err := run.ended(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A connection that leads nowhere any more is an error after five seconds, whichever
// of the two it is, and also while they wait for the slot.
func TestReplicationHalfOpen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dead    func(dial int32) bool // which connections
		waiting bool
	}{
		"both":                 {func(int32) bool { return true }, false},
		"the replication":      {func(dial int32) bool { return dial == 1 }, false},
		"the other":            {func(dial int32) bool { return dial == 2 }, false},
		"waiting for the slot": {func(int32) bool { return true }, true},
		"slot made meanwhile":  {func(dial int32) bool { return dial == 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := serverRig(t, nil)
			source := replication(r)
			proxy, cfg := proxied(t, r.dsn)
			direct := parsed(t, r.dsn)
			var dials atomic.Int32
			cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if !c.dead(dials.Add(1)) {
					network, addr = pgconn.NetworkAddress(direct.Host, direct.Port)
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			source.Config = cfg
			waiting := make(chan string, 100)
			source.OnWaiting = func(detail string) { waiting <- detail }
			writer := pgtest.Connect(t, r.dsn)
			if c.waiting {
				pgtest.Exec(t, writer, `begin; select pg_current_xact_id()`)
			}
			run := runSource(t, source)
			if c.waiting {
				<-waiting
			} else {
				run.await("when subscribed")
			}
			proxy.Stall()
			pgtest.Exec(t, writer, `rollback`)
			begun := time.Now()
			err := run.ended()
			if took := time.Since(begun); took < pingTimeout || took > 10*time.Second {
				t.Errorf("the silence was noticed after %v", took)
			} else {
				t.Logf("noticed after %v", took)
			}
			if want := map[bool]string{false: "no sign of life from the server", true: "answer does not arrive"}[name == "slot made meanwhile"]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

// A server that is stopped does not wait for the source, which says what happened
// and can be run again.
func TestReplicationServerRestart(t *testing.T) {
	t.Parallel()
	r, server := serverRig(t, nil)
	source := replication(r)
	run := runSource(t, source)
	run.await("when subscribed")
	r.insert("a", `1`)
	run.await("for an insert")
	begun := time.Now()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the restart took %v", took)
	}
	err := run.ended()
	if err == nil {
		t.Error("no error after its server was stopped")
	}
	t.Log(err)
	r.db = pgtest.Connect(t, r.dsn)
	run = runSource(t, source)
	run.await("when subscribed again")
	r.insert("a", `1`)
	run.await("for an insert")
}

func TestSlotWaitDescribe(t *testing.T) {
	t.Parallel()
	number := func(n int) *int { return &n }
	const text = "the replication slot waits for 1m30s until all transactions have ended that were writing"
	open := 7384.4
	for _, c := range []struct {
		slotWait
		want string
	}{
		{slotWait{}, text},
		{slotWait{blocker: number(0)}, text + ", now for a prepared transaction"},
		{slotWait{blocker: number(42)}, text + ", now for that of process 42"},
		{slotWait{blocker: number(42), open: &open}, text + ", now for that of process 42, open for 2h3m4s"},
	} {
		if got := c.describe(90*time.Second + 3*time.Millisecond); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// What the server is not known to refuse keeps its own words.
func TestReplicationExplainsOnlyRefusals(t *testing.T) {
	t.Parallel()
	r := &Replication{Config: &pgx.ConnConfig{}, Publication: "p"}
	if err := r.explain("try", nil); err != nil {
		t.Error(err)
	}
	if got := r.explain("try", context.DeadlineExceeded); fmt.Sprint(got) != "try: context deadline exceeded" {
		t.Error(got)
	}
}
