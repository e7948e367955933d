package scenario

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
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

// The publish ceiling has as much in flight as the product. The claim ceiling
// has as many connections as are of use: more than cores only wait.
const (
	ceilingWorkers = dispatcher.DefaultWorkers
	ceilingBatch   = dispatcher.DefaultBatch
)

// claimCeiling fills the lane with n tasks, claims, reads and marks them without
// publishing, and returns what the latter took. Each connection begins at a
// place of its own in the backlog, so that none has to step over what another
// has locked: something that no dispatcher can arrange, which is why this is a
// ceiling.
func claimCeiling(ctx context.Context, l *lane, n int) (span, error) {
	if err := l.fill(ctx, n); err != nil {
		return span{}, err
	}
	workers := min(ceilingWorkers, runtime.GOMAXPROCS(0))
	conns := make([]*pgx.Conn, 0, workers)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	places := make([]claimPlace, workers)
	for i := range workers {
		conn, err := pgx.Connect(ctx, l.rig.dsn)
		if err != nil {
			return span{}, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		conns = append(conns, conn)
		if _, err := conn.Exec(ctx, ceilingSessionSQL); err != nil {
			return span{}, fmt.Errorf("claim ceiling: settings: %w", err)
		}
		start := l.named(`select id - 1, send_after from {outbox} order by send_after, id offset $1 limit 1`)
		if err := conn.QueryRow(ctx, start, i*n/workers).Scan(&places[i].id, &places[i].after); err != nil {
			return span{}, fmt.Errorf("claim ceiling: find the start: %w", err)
		}
	}
	stmt := l.named(ceilingClaimSQL)
	stop := l.rig.watch()
	g, ctx := errgroup.WithContext(ctx)
	for i, conn := range conns {
		share := (i+1)*n/workers - i*n/workers
		g.Go(func() error { return claimShare(ctx, conn, stmt, places[i], share) })
	}
	err := g.Wait()
	return stop(), err
}

// claimShare claims n tasks from a place on.
func claimShare(ctx context.Context, conn *pgx.Conn, stmt string, from claimPlace, n int) error {
	for left := n; left > 0; {
		found, err := claimOnce(ctx, conn, stmt, &from, min(left, ceilingBatch))
		if err != nil {
			return fmt.Errorf("claim ceiling: %w", err)
		}
		if found == 0 {
			return fmt.Errorf("claim ceiling: %d of %d tasks are missing", left, n)
		}
		left -= found
	}
	return nil
}

// claimPlace is where a claim starts in the due index.
type claimPlace struct {
	after time.Time
	id    int64
}

func (p *claimPlace) advance(to claimPlace) {
	if order := p.after.Compare(to.after); order < 0 || order == 0 && p.id < to.id {
		*p = to
	}
}

// claimOnce is one transaction of two round trips, as the product makes.
func claimOnce(ctx context.Context, conn *pgx.Conn, stmt string, from *claimPlace, limit int) (found int, err error) {
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(stmt, from.after, from.id, limit)
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
	// The row is read off the wire, but only its place is decoded. The last row is
	// not always the furthest, for RETURNING has no order.
	var at claimPlace
	row := []any{&at.id, &at.after, nil, nil, nil, nil, nil, nil}
	for rows.Next() {
		if err := rows.Scan(row...); err != nil {
			break // told by rows.Err
		}
		from.advance(at)
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
// product does but without a database, and returns what that took.
func publishCeiling(ctx context.Context, l *lane, n int) (span, error) {
	nc, err := l.rig.connect("ceiling")
	if err != nil {
		return span{}, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(ceilingWorkers*ceilingBatch))
	if err != nil {
		return span{}, fmt.Errorf("use JetStream: %w", err)
	}
	defer js.CleanupPublisher()
	var payload []byte
	if err := l.rig.pool.QueryRow(ctx, `select (`+payloadSQL+`)::text from (values (100000)) as v(n)`).Scan(&payload); err != nil {
		return span{}, fmt.Errorf("make a payload: %w", err)
	}
	messages := newMessages(l, payload, time.Now())
	var next atomic.Int64
	stop := l.rig.watch()
	g, ctx := errgroup.WithContext(ctx)
	for range ceilingWorkers {
		g.Go(func() error {
			for {
				end := next.Add(ceilingBatch)
				first, last := end-ceilingBatch+1, min(end, int64(n))
				if first > last {
					return nil
				}
				if err := publishOnce(ctx, js, messages, first, last); err != nil {
					return fmt.Errorf("publish ceiling: %w", err)
				}
			}
		})
	}
	err = g.Wait()
	return stop(), err
}

// publishOnce publishes the messages of one batch and waits for all answers.
func publishOnce(ctx context.Context, js jetstream.JetStream, messages *messages, first, last int64) error {
	futures := make([]jetstream.PubAckFuture, 0, last-first+1)
	for id := first; id <= last; id++ {
		f, err := js.PublishMsgAsync(messages.of(id), jetstream.WithRetryAttempts(0))
		if err != nil {
			return err
		}
		futures = append(futures, f)
	}
	return await(ctx, futures)
}

// await waits until all of them are acknowledged.
func await(ctx context.Context, futures []jetstream.PubAckFuture) error {
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
