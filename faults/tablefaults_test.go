package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
)

// tableFaults happen inside the database. They cannot be had while it is away.
var tableFaults = []fault{
	{name: "terminate listener", weight: 5, run: terminate(`backend_type = 'client backend' and query ilike 'listen%'`)},
	{name: "terminate walsender", weight: 4, run: terminate(`backend_type = 'walsender'`)},
	{name: "terminate claimers", weight: 5, run: terminate(`backend_type = 'client backend' and state = 'idle in transaction'`)},
	{name: "terminate everybody", weight: 2, run: terminate(`backend_type = 'client backend' and pid <> pg_backend_pid()`)},
	{name: "cancel everybody", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `select pg_cancel_backend(pid) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid()`)
	}},
	{name: "old snapshot", weight: 5, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		return w.inTx(ctx, pgx.RepeatableRead, 3*hold, `select count(*) from outbox where sent_at is null`)
	}},
	{name: "lock rows", weight: 4, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		return w.inTx(ctx, pgx.ReadCommitted, hold, `select from outbox where sent_at is null and dead_at is null order by send_after limit 500 for update skip locked`)
	}},
	{name: "lock table against writers", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		return w.inTx(ctx, pgx.ReadCommitted, hold, `lock table outbox in share mode`)
	}},
	{name: "lock table", weight: 2, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		return w.inTx(ctx, pgx.ReadCommitted, hold, `lock table outbox in access exclusive mode`)
	}},
	{name: "vacuum freeze", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `vacuum (freeze, analyze) outbox`)
	}},
	{name: "reindex concurrently", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `reindex table concurrently outbox`)
	}},
	{name: "vacuum full", weight: 1, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `vacuum full outbox`)
	}},
	{name: "migrate", weight: 3, netted: true, run: func(ctx context.Context, w *world, r *rand.Rand, _ time.Duration) bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, w.pg.DSN("postgres"))
		if err != nil {
			return false
		}
		defer closeConn(conn)
		// What wakes the dispatchers is taken away, and comes back.
		if r.IntN(2) == 0 {
			if _, err := outbox.Migrate(ctx, conn, outbox.MigrateOptions{Wake: outbox.WakePoll}); err != nil {
				return false
			}
		}
		_, err = outbox.Migrate(ctx, conn, outbox.MigrateOptions{Wake: outbox.WakeAuto})
		return err == nil
	}},
	{name: "postpone tasks", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `update outbox set send_after = clock_timestamp() + interval '700 ms' where id in (
			select id from outbox where sent_at is null and dead_at is null limit 200 for update skip locked)`)
	}},
	{name: "clock back", weight: 2, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `update outbox set send_after = send_after - interval '1 hour' where id in (
			select id from outbox where sent_at is null and dead_at is null limit 200 for update skip locked)`)
	}},
	{name: "clock of the mask ahead", weight: 2, netted: true, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		// As if somebody who is gone had promised to poll.
		return w.sql(ctx, `select setval('outbox_mask', (extract(epoch from clock_timestamp()) * 1000)::bigint + $1::bigint)`, hold.Milliseconds())
	}},
	{name: "checkpoint", weight: 2, run: func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return w.sql(ctx, `checkpoint`)
	}},
}

func terminate(which string) func(context.Context, *world, *rand.Rand, time.Duration) bool {
	return func(ctx context.Context, w *world, _ *rand.Rand, _ time.Duration) bool {
		return len(w.backends(ctx, `select pid from pg_stat_activity where `+which+` and pg_terminate_backend(pid)`)) > 0
	}
}

// onDatabase does something with a connection around the proxies. It returns
// false when the database is away, or ends it.
func (w *world) onDatabase(ctx context.Context, do func(context.Context, *pgx.Conn) error) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.pg.DSN("postgres"))
	if err != nil {
		return false
	}
	defer closeConn(conn)
	return do(ctx, conn) == nil
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func (w *world) sql(ctx context.Context, sql string, args ...any) bool {
	return w.onDatabase(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// inTx keeps a transaction open after a statement.
func (w *world) inTx(ctx context.Context, level pgx.TxIsoLevel, hold time.Duration, sql string) bool {
	return w.onDatabase(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
			wait(ctx, hold)
			return nil
		})
	})
}

// backends returns process ids.
func (w *world) backends(ctx context.Context, sql string) (pids []int) {
	w.onDatabase(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return err
		}
		pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	return pids
}
