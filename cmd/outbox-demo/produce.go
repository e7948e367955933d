package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// producers is how many connections insert. One cannot reach the highest rate,
// since each commit waits for the disk.
const producers = 16

// insertTimeout bounds one transaction of a producer.
const insertTimeout = 30 * time.Second

const insertSQL = `
insert into outbox (kind, payload)
values ('email', jsonb_build_object('to', 'user' || $1::bigint || '@example.com', 'number', $1::bigint))
returning id`

// produce inserts tasks at the rate that was asked for, each in a transaction
// of its own, until there are enough or ctx ends. A producer that was late
// catches up.
func produce(ctx context.Context, s *stack, set settings, book *ledger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int64)
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			for n := range numbers {
				if err := insert(ctx, s, n, book); err != nil {
					cancel(err)
				}
			}
		})
	}
	schedule(ctx, s, set, numbers)
	close(numbers)
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// schedule sends the numbers of the tasks, each when it is time for it.
func schedule(ctx context.Context, s *stack, set settings, numbers chan<- int64) {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(1); set.Count == 0 || n <= int64(set.Count); n++ {
		timer.Reset(time.Until(start.Add(time.Duration(float64(n) / set.Rate * float64(time.Second)))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		case <-s.dispatcher.Done(): // awaitArrivals tells why
			return
		}
		select {
		case numbers <- n:
		case <-ctx.Done():
			return
		}
	}
}

// insert commits one task. A stop does not interrupt it: it would be unknown
// whether the task was committed.
func insert(ctx context.Context, s *stack, number int64, book *ledger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), insertTimeout)
	defer cancel()
	var id int64
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// A service changes its own tables here, in the same transaction.
		return tx.QueryRow(ctx, insertSQL, number).Scan(&id)
	})
	at := time.Now()
	if err != nil {
		return fmt.Errorf("insert task %d: %w", number, err)
	}
	book.commit(id, at)
	return nil
}

// patience is how long the demo waits for anything to happen before it says
// that tasks were lost.
const patience = 30 * time.Second

// awaitArrivals returns when all that was committed has arrived, or nothing has
// arrived for a while. It fails if the dispatcher has ended.
func awaitArrivals(s *stack, book *ledger) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for book.waiting() > 0 {
		select {
		case <-book.arrived:
			timer.Reset(patience)
		case <-timer.C:
			return nil
		case <-s.dispatcher.Done():
			return errors.Join(errors.New("the dispatcher ended by itself"), s.dispatcher.Err())
		}
	}
	return nil
}
