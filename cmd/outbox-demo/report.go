package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report prints a line each second until it is stopped.
type report struct {
	done chan struct{}
	wg   sync.WaitGroup
}

const heading = "  second  inserted  delivered   p50 ms   p99 ms   max ms"

// headingEvery repeats the heading before it has left a usual screen.
const headingEvery = 20

func startReport(w io.Writer, book *ledger) *report {
	r := &report{done: make(chan struct{})}
	r.wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for second := 1; ; second++ {
			select {
			case <-tick.C:
			case <-r.done:
				return
			}
			if second%headingEvery == 1 {
				fmt.Fprintln(w, heading)
			}
			fmt.Fprintln(w, line(second, book.take(), book.waiting()))
		}
	})
	return r
}

func (r *report) stop() {
	close(r.done)
	r.wg.Wait()
}

// line tells of one second. What is not as usual is added at its end.
func line(second int, t tally, waiting int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8d %9d %10d ", second, t.inserted, t.delivered)
	if t.delivered > 0 {
		fmt.Fprintf(&b, " %8s %8s %8s", ms(t.latency, 50), ms(t.latency, 99), ms(t.latency, 100))
	} else {
		fmt.Fprintf(&b, " %8s %8s %8s", "-", "-", "-")
	}
	if waiting > 0 {
		fmt.Fprintf(&b, "  waiting %d", waiting)
	}
	if t.duplicated > 0 {
		fmt.Fprintf(&b, "  DUPLICATED %d", t.duplicated)
	}
	return b.String()
}

func ms(h *hdrhistogram.Histogram, percentile float64) string {
	return fmt.Sprintf("%.2f", float64(h.ValueAtPercentile(percentile))/1e6)
}

// settle stops the dispatcher, so that nothing more can arrive, reads the
// stream to its end and compares the two sides.
func settle(ctx context.Context, s *stack, sub *subscription, book *ledger, set settings, w io.Writer) error {
	interrupted := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	if err := s.dispatcher.Stop(); err != nil {
		return err
	}
	if err := sub.finish(ctx); err != nil {
		return err
	}
	v := book.verdict()
	fmt.Fprintf(w, "\n%d inserted, %d delivered, %d lost, %d duplicated, %d foreign (inserted by somebody else)\n",
		v.inserted, v.delivered, v.lost, v.duplicated, v.foreign)
	if v.delivered > 0 {
		fmt.Fprintf(w, "from commit to delivery: p50 %s ms, p99 %s ms, max %s ms\n",
			ms(v.latency, 50), ms(v.latency, 99), ms(v.latency, 100))
	}
	return judge(v, set, interrupted)
}

// judge says what is wrong with the outcome. Without a count, tasks of others
// are welcome: the demo invites to insert some.
func judge(v verdict, set settings, interrupted bool) error {
	var errs []error
	if v.lost > 0 {
		errs = append(errs, fmt.Errorf("%d tasks were committed and did not arrive", v.lost))
	}
	if v.duplicated > 0 {
		errs = append(errs, fmt.Errorf("%d messages arrived again", v.duplicated))
	}
	if set.Count == 0 {
		return errors.Join(errs...)
	}
	if v.foreign > 0 {
		errs = append(errs, fmt.Errorf("%d messages arrived that the demo did not insert", v.foreign))
	}
	switch {
	case interrupted && v.inserted < int64(set.Count):
		errs = append(errs, fmt.Errorf("interrupted after %d of %d tasks", v.inserted, set.Count))
	case v.inserted != int64(set.Count):
		errs = append(errs, fmt.Errorf("%d tasks were inserted, not %d", v.inserted, set.Count))
	}
	return errors.Join(errs...)
}
