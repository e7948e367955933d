package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// look is how often a daemon's progress is looked at: often enough for a drain of
// seconds, rarely enough to take no CPU from it.
const look = 20 * time.Millisecond

// patience is how long n tasks of so many bytes may take: far beyond what a slow
// machine needs, so that only a dispatcher that stands still runs into it.
func patience(n, bytes int) time.Duration {
	const slowest, slowestBytes = 500, 4 << 20 // per second
	return arrival + time.Duration(float64(n)/slowest*float64(time.Second)) +
		time.Duration(float64(n)*float64(bytes)/slowestBytes*float64(time.Second))
}

// drained waits until n messages are stored and no task is unsent. It fails when
// that takes longer than within, or when the product ends before. If first is not
// nil, it is set to when the first message was seen.
func (l *lane) drained(ctx context.Context, p *product, n int, within time.Duration, first *time.Time) error {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for stored := 0; ; {
		select {
		case <-tick.C:
		case <-timeout.C:
			return fmt.Errorf("after %v %d of %d tasks are stored: the dispatcher stands still or crawls", within, stored, n)
		case <-p.ended:
			return errors.Join(fmt.Errorf("%d of %d tasks are stored", stored, n), p.died())
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if stored, err = l.stored(ctx); err != nil {
			return err
		}
		if stored > 0 && first != nil && first.IsZero() {
			*first = time.Now()
		}
		if stored < n {
			continue
		}
		if done, err := l.empty(ctx); done || err != nil {
			return err
		}
	}
}

// empty reports whether no task is unsent.
func (l *lane) empty(ctx context.Context) (bool, error) {
	var left bool
	err := l.rig.pool.QueryRow(ctx, l.named(`select exists (select from {outbox} where sent_at is null)`)).Scan(&left)
	if err != nil {
		return false, fmt.Errorf("look for unsent tasks: %w", err)
	}
	return !left, nil
}

// warmUp sends one task, which shows that the product runs.
func (l *lane) warmUp(ctx context.Context, p *product) error {
	if err := l.add(ctx); err != nil {
		return err
	}
	return l.drained(ctx, p, 1, arrival, nil)
}
