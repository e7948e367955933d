package dispatcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// tunedPool returns a pool for claims, changed by change before it is tuned.
func tunedPool(t *testing.T, dsn string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	change(cfg)
	TunePool(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// shown is a setting as a statement outside of a claim sees it.
func shown(t *testing.T, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, name string,
) string {
	t.Helper()
	var value string
	if err := q.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestTunePool(t *testing.T) {
	t.Parallel()
	var before string
	pool := tunedPool(t, pgtest.NewDB(t), func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			before = shown(t, conn, "enable_seqscan")
			_, err := conn.Exec(ctx, "set work_mem = '5MB'")
			return err
		}
	})
	for name, want := range map[string]string{"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "work_mem": "5MB"} {
		if got := shown(t, pool, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if before != "on" {
		t.Errorf("the caller's AfterConnect saw enable_seqscan %q: it did not run first", before)
	}
}

func TestTunePoolKeepsTheCallersRefusal(t *testing.T) {
	t.Parallel()
	refused := errors.New("not this one")
	pool := tunedPool(t, pgtest.NewDB(t), func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(context.Context, *pgx.Conn) error { return refused }
	})
	if err := pool.Ping(t.Context()); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
}

// A transaction pooler gives the session to the next client as it is.
func TestTunePoolLeavesPooledSessionsAlone(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	b := startPgBouncer(t, r.dsn)
	tab.pool = tunedPool(t, b.dsn+"&default_query_exec_mode=exec", func(*pgxpool.Config) {})
	r.insert("email", `{}`)
	mustClaim(t, tab, ask{tasks: 10}).release()
	if n := tab.pool.Stat().TotalConns(); n != 1 {
		t.Fatalf("%d connections: the next client may get another session", n)
	}
	other := pooled(t, b.dsn+"&default_query_exec_mode=exec")
	if got := shown(t, other, "enable_seqscan"); got != "on" {
		t.Errorf("the next client of the pooler has enable_seqscan %s", got)
	}
}

// A connection that goes silent after the handshake does not keep its place in the pool.
func TestTunePoolGivesUpASilentConnection(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	proxy, through := proxied(t, dsn)
	proxy.Before(faultproxy.ToServer, []byte("set_config"), func(c *faultproxy.Conn) { <-c.Done() })
	pool := tunedPool(t, dsn, func(cfg *pgxpool.Config) { cfg.ConnConfig = through })
	if err := pool.Ping(t.Context()); err == nil {
		t.Fatal("the connection is not silent")
	}
	if n := pool.Stat().TotalConns(); n != 0 {
		t.Errorf("%d connections are still being made", n)
	}
}

// A table that somebody has locked is an error of its own, after a second: no
// claim that was too large.
func TestClaimOfALockedTable(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	for name, pool := range map[string]*pgxpool.Pool{"tuned": tab.pool, "not tuned": pooled(t, r.dsn)} {
		tab.pool = pool
		// Preparing a statement, once per connection, waits for longer.
		if _, err := tab.claim(t.Context(), ask{tasks: 10, bytes: 1 << 20, fetch: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		r.exec(`begin`)
		r.exec(`lock table outbox in share mode`)
		_, err := tab.claim(t.Context(), ask{tasks: 10, bytes: 1 << 20, fetch: 1 << 20})
		if sqlState(err) != "55P03" || tookTooLong(err) || connectionLost(err) {
			t.Errorf("%s: error %v", name, err)
		}
		r.exec(`rollback`)
	}
}

// A pooler may make up any number for the process of a handshake.
func TestSessionOfAnotherProcessIsLeftAlone(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, pid := range []string{"0", "1", "2147483648", "4294967295"} {
		var set bool
		if err := conn.QueryRow(t.Context(), sessionSQL, pgx.QueryExecModeExec, "10000", pid).Scan(&set); err != nil || set {
			t.Errorf("process %s: set %t, error %v", pid, set, err)
		}
	}
	if got := shown(t, conn, "enable_seqscan"); got != "on" {
		t.Errorf("enable_seqscan is %s", got)
	}
}

// A claim does not rely on the session: its transaction sets what is not so.
func TestClaimSetsWhatTheSessionLacks(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	direct := tab.pool
	for name, pool := range map[string]*pgxpool.Pool{
		"tuned":     direct,
		"not tuned": pooled(t, r.dsn),
		"otherwise": pooled(t, r.dsn+"&enable_seqscan=on&datestyle=SQL,DMY&bytea_output=escape&client_encoding=latin1&row_security=on&statement_timeout=1h&synchronous_commit=on"),
	} {
		tab.pool = pool
		r.insert("email", `{}`)
		c := mustClaim(t, tab, ask{tasks: 1})
		for setting, want := range map[string]string{
			"row_security": "off", "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
			"jit": "off", "client_encoding": "UTF8", "bytea_output": "hex", "plan_cache_mode": "force_generic_plan",
			"synchronous_commit": "off", "lock_timeout": "1s", "idle_in_transaction_session_timeout": "10s",
			"statement_timeout": map[bool]string{true: "10s", false: "5s"}[pool == direct],
		} {
			if got := shown(t, c.conn, setting); got != want {
				t.Errorf("%s: %s is %s, want %s", name, setting, got, want)
			}
		}
		if got := shown(t, c.conn, "datestyle"); got[:3] != "ISO" {
			t.Errorf("%s: datestyle is %s", name, got)
		}
		c.release()
		if got := shown(t, tab.pool, "synchronous_commit"); got != "on" {
			t.Errorf("%s: after the claim synchronous_commit is %s", name, got)
		}
	}
}

// Claims that take longer than the publish timeout are made smaller, whoever
// ends them: the server, or the dispatcher that sees how long it took.
func TestSlowClaimsShrink(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tuned", "not tuned"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.3); return new; end $$`)
			r.exec(`create trigger slow before update on outbox for each row execute function slow()`)
			r.insertMany(3)
			r.start(func(c *Config) {
				c.Batch = 4
				c.PublishTimeout = 500 * time.Millisecond
				if name == "not tuned" {
					c.Pool = pooled(t, r.dsn+"&pool_max_conns=10")
				}
			})
			r.awaitSettled()
			if ids := r.storedIDs(); len(ids) != 3 {
				t.Errorf("%d tasks are stored, want 3", len(ids))
			}
		})
	}
}
