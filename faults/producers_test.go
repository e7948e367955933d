package faults

import (
	"context"
	"crypto/md5" // filler that SQL can make as well
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// insertSQL enqueues the tasks $1 to $2. Everything in a task follows from its
// number: see contentSum.
const insertSQL = `
insert into outbox (kind, payload, body, headers)
select 'soak.k' || n % 5,
       case when n % 3 > 0 then doc end,
       case when n % 3 = 0 then convert_to(doc::text, 'UTF8') end,
       jsonb_build_object('Soak-N', n::text)
  from (select n, jsonb_build_object('n', n, 'pad', repeat(md5(n::text), (n % 4)::int)) as doc
          from generate_series($1::bigint, $2::bigint) as n) as t`

func contentSum(n int64) uint64 {
	text := strconv.FormatInt(n, 10)
	sum := md5.Sum([]byte(text))
	pad := strings.Repeat(hex.EncodeToString(sum[:]), int(n%4))
	return checksum("soak.k"+strconv.FormatInt(n%5, 10), text, pad)
}

// load is what the producers do until they are stopped.
type load struct {
	producers int
	rate      float64 // tasks per second, of all
	bulk      int64   // tasks of the largest transactions
	most      int64   // tasks in all
	volatile  bool    // commit without waiting for the disk
}

// produce starts the producers. The returned function stops them and waits.
func (w *world) produce(seed uint64, l load) (finish func()) {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var wg sync.WaitGroup
	var ahead atomic.Int64 // the producers' common clock, in ns
	begun := time.Now()
	for i := range l.producers {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			p := producer{w: w, load: l, r: r}
			defer p.close()
			for ctx.Err() == nil && w.history.Tasks() < l.most {
				count := p.count()
				// Each transaction takes its place on the common clock.
				due := time.Duration(ahead.Add(int64(float64(count) / l.rate * float64(time.Second))))
				if !wait(ctx, due-time.Since(begun)) || !p.connect(ctx) {
					return
				}
				p.transaction(ctx, count)
			}
		})
	}
	return func() {
		stop()
		wg.Wait()
	}
}

// wait returns false when ctx has ended meanwhile.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type producer struct {
	w    *world
	load load
	r    *rand.Rand
	conn *pgx.Conn
}

func (p *producer) close() {
	if p.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.conn.Close(ctx)
	}
}

// connect makes sure that there is a connection, and returns false when ctx has
// ended before.
func (p *producer) connect(ctx context.Context) bool {
	for p.conn == nil || p.conn.IsClosed() {
		dial, cancel := context.WithTimeout(ctx, 2*time.Second)
		conn, err := pgx.Connect(dial, p.w.dsn(p.w.entry))
		cancel()
		if err == nil {
			p.conn = conn
		} else if !wait(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// count draws the tasks of a transaction: mostly one, sometimes many.
func (p *producer) count() int64 {
	switch n := p.r.IntN(20); {
	case n < 12:
		return 1
	case n < 18:
		return 1 + p.r.Int64N(20)
	default:
		return 1 + p.r.Int64N(p.load.bulk)
	}
}

// transaction enqueues tasks and records what became of them.
func (p *producer) transaction(ctx context.Context, count int64) {
	t := Transaction{First: p.w.history.Reserve(count), Count: count, Volatile: p.load.volatile, Begun: time.Now()}
	// A stop lets a transaction finish, and a network that is silent does not
	// hold it for ever.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	t.Outcome = p.try(ctx, t)
	t.Ended = time.Now()
	p.w.history.Record(t)
}

func (p *producer) try(ctx context.Context, t Transaction) Outcome {
	tx, err := p.conn.Begin(ctx)
	if err != nil {
		return RolledBack
	}
	if err := p.fill(ctx, tx, t); err != nil || p.r.IntN(20) == 0 {
		_ = tx.Rollback(ctx) // COMMIT was not sent, whatever this says
		return RolledBack
	}
	return commitOutcome(tx.Commit(ctx))
}

// commitOutcome tells what an answer to COMMIT means. A server that ends may
// say so after it has committed, so only an ERROR is a no.
func commitOutcome(err error) Outcome {
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return Committed
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &refused) && refused.Severity == "ERROR":
		return RolledBack
	}
	return Unknown
}

func (p *producer) fill(ctx context.Context, tx pgx.Tx, t Transaction) error {
	if t.Volatile {
		if _, err := tx.Exec(ctx, `set local synchronous_commit = off`); err != nil {
			return fmt.Errorf("set: %w", err)
		}
	}
	if p.r.IntN(10) == 0 {
		// Some of it is rolled back to a savepoint first.
		sub, err := tx.Begin(ctx)
		if err != nil {
			return fmt.Errorf("savepoint: %w", err)
		}
		if _, err := sub.Exec(ctx, insertSQL, t.First, t.First); err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		if err := sub.Rollback(ctx); err != nil {
			return fmt.Errorf("rollback to savepoint: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, insertSQL, t.First, t.First+t.Count-1); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if p.r.IntN(4) == 0 {
		// What the transaction does besides: ids commit out of order.
		wait(ctx, time.Duration(p.r.Int64N(int64(50*time.Millisecond))))
	}
	return nil
}
