package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// The statements of the claim ceiling: the marks that the product makes, with
// nothing that the product needs beyond them.
const (
	// ceilingSessionSQL sets once what the product, which may share its
	// sessions through a pooler, has to set in each transaction.
	ceilingSessionSQL = `
set synchronous_commit = off;
set enable_seqscan = off;
set enable_bitmapscan = off;
set enable_hashjoin = off;
set enable_mergejoin = off;
set jit = off;
set plan_cache_mode = force_generic_plan`

	// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
	ceilingClaimSQL = `
with due as materialized (
  select id, send_after
    from {outbox}
   where sent_at is null and dead_at is null and send_after <= now()
     and (send_after, id) > ($1::timestamptz, $2::bigint)
   order by send_after, id
   limit $3
     for update skip locked
)
update {outbox} as o
   set sent_at = now(), attempts = o.attempts + 1
  from due
 where o.id = due.id
returning o.id, o.send_after, o.kind, o.headers, o.attempts, o.created_at, o.payload, o.body`
)

// ceilings are run with as many workers and as large batches as the product.
const (
	ceilingWorkers = dispatcher.DefaultWorkers
	ceilingBatch   = dispatcher.DefaultBatch
)

// claimCeiling fills the lane with n tasks, claims, reads and marks them without
// publishing, and returns how long the latter took.
func claimCeiling(ctx context.Context, l *lane, n int) (time.Duration, error) {
	if err := l.fill(ctx, n); err != nil {
		return 0, err
	}
	conns := make([]*pgx.Conn, 0, ceilingWorkers)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for range ceilingWorkers {
		conn, err := pgx.Connect(ctx, l.rig.dsn)
		if err != nil {
			return 0, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		conns = append(conns, conn)
		if _, err := conn.Exec(ctx, ceilingSessionSQL); err != nil {
			return 0, fmt.Errorf("claim ceiling: settings: %w", err)
		}
	}
	stmt := l.named(ceilingClaimSQL)
	var marked atomic.Int64
	begun := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for _, conn := range conns {
		g.Go(func() error {
			from := claimPlace{after: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}
			for marked.Load() < int64(n) {
				found, err := claimOnce(ctx, conn, stmt, &from)
				if err != nil {
					return fmt.Errorf("claim ceiling: %w", err)
				}
				if found == 0 {
					return nil
				}
				marked.Add(int64(found))
			}
			return nil
		})
	}
	err := g.Wait()
	took := time.Since(begun)
	if err == nil && marked.Load() != int64(n) {
		err = fmt.Errorf("claim ceiling: %d of %d tasks were marked", marked.Load(), n)
	}
	return took, err
}

// claimPlace is where a claim starts in the due index.
type claimPlace struct {
	after pgtype.Timestamptz
	id    int64
}

// claimOnce is one transaction of two round trips, as the product makes.
func claimOnce(ctx context.Context, conn *pgx.Conn, stmt string, from *claimPlace) (found int, err error) {
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(stmt, from.after, from.id, ceilingBatch)
	res := conn.SendBatch(ctx, &batch)
	if _, err := res.Exec(); err != nil {
		_ = res.Close()
		return 0, err
	}
	rows, err := res.Query()
	if err != nil {
		_ = res.Close()
		return 0, err
	}
	// The row is read off the wire, but only its place is decoded.
	row := []any{&from.id, &from.after, nil, nil, nil, nil, nil, nil}
	for rows.Next() {
		if err := rows.Scan(row...); err != nil {
			break
		}
		found++
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		_ = res.Close()
		return 0, err
	}
	if err := res.Close(); err != nil {
		return 0, err
	}
	_, err = conn.Exec(ctx, "commit")
	return found, err
}

// publishCeiling publishes n messages like those of the lane's tasks, as the
// product does but without a database, and returns how long that took.
func publishCeiling(ctx context.Context, l *lane, n int) (time.Duration, error) {
	nc, err := l.rig.connect("ceiling")
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(ceilingWorkers*ceilingBatch))
	if err != nil {
		return 0, fmt.Errorf("use JetStream: %w", err)
	}
	defer js.CleanupPublisher()
	var payload []byte
	if err := l.rig.pool.QueryRow(ctx, `select (`+payloadSQL+`)::text from (values (100000)) as v(n)`).Scan(&payload); err != nil {
		return 0, fmt.Errorf("make a payload: %w", err)
	}
	created := time.Now()
	var next atomic.Int64
	begun := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range ceilingWorkers {
		g.Go(func() error {
			for {
				end := next.Add(ceilingBatch)
				first, last := end-ceilingBatch+1, min(end, int64(n))
				if first > last {
					return nil
				}
				if err := publishOnce(ctx, js, l, first, last, payload, created); err != nil {
					return fmt.Errorf("publish ceiling: %w", err)
				}
			}
		})
	}
	err = g.Wait()
	return time.Since(begun), err
}

// publishOnce publishes the messages of one batch and waits for all answers.
func publishOnce(ctx context.Context, js jetstream.JetStream, l *lane, first, last int64, payload []byte, created time.Time) error {
	futures := make([]jetstream.PubAckFuture, 0, last-first+1)
	for id := first; id <= last; id++ {
		f, err := js.PublishMsgAsync(taskMessage(l, id, kind, payload, created), jetstream.WithRetryAttempts(0))
		if err != nil {
			return err
		}
		futures = append(futures, f)
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
