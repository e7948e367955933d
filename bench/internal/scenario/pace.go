package scenario

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// pace is an open loop: action i is due at a time of its own, whatever became
// of those before. What falls behind is made up for at once, and a latency that
// counts from the due time includes the delay.
type pace struct {
	rate    float64 // actions per second
	workers int
}

// run does n actions and returns the first error. Worker numbers run from 0.
func (p pace) run(ctx context.Context, n int, do func(ctx context.Context, worker int, due time.Time) error) error {
	begun := time.Now()
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for worker := range p.workers {
		g.Go(func() error {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return nil
				}
				due := begun.Add(time.Duration(float64(i) / p.rate * float64(time.Second)))
				timer.Reset(time.Until(due))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-timer.C:
				}
				if err := do(ctx, worker, due); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}
