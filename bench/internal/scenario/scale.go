package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// scaleCmd is "bench scale".
type scaleCmd struct {
	Dispatchers []int         `default:"1,2,4,8" help:"Numbers of dispatchers on one outbox."`
	Tasks       int           `placeholder:"N" help:"Size of the backlog that they drain. Default 50000, with --long 300000."`
	Rate        float64       `default:"500" help:"Tasks per second of the steady part, on 4 connections."`
	Slice       time.Duration `placeholder:"TIME" help:"Length of the steady part. Default 1.5s, with --long 10s."`
	Rounds      int           `placeholder:"N" help:"Rounds of everything, alternating. Default 2, with --long 7."`
}

// scaled is what some dispatchers did, round by round.
type scaled struct {
	drain, drainEmpty              series // tasks per second; claims in vain per task
	p50, p99, steadyEmpty, notices series
}

// claims counts beside the progress of a drain what was claimed in vain.
type claims struct {
	*progress
	empty atomic.Int64
}

// Claimed implements [dispatcher.Observer].
func (c *claims) Claimed(tasks int, took time.Duration) {
	if tasks == 0 {
		c.empty.Add(1)
	}
	c.progress.Claimed(tasks, took)
}

// Run measures and reports.
func (c *scaleCmd) Run(ctx context.Context, b *bench) (err error) {
	c.Tasks = cmp.Or(c.Tasks, b.counted(50_000, 300_000))
	c.Slice = cmp.Or(c.Slice, time.Duration(b.counted(1500, 10_000))*time.Millisecond)
	c.Rounds = cmp.Or(c.Rounds, b.counted(2, 7))
	if c.Tasks < 1 || c.Rate <= 0 || c.Slice < 0 || c.Rounds < 1 || len(c.Dispatchers) == 0 {
		return errors.New("--tasks, --rate, --slice and --rounds must be positive, and --dispatchers must name a number")
	}
	for _, n := range c.Dispatchers {
		if n < 1 || n > maxFleet {
			return fmt.Errorf("--dispatchers must be 1 to %d each, got %d", maxFleet, n)
		}
	}
	if b.Process {
		return errors.New("scale counts the claims within its own process: leave out --process")
	}
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	found := make([]scaled, len(c.Dispatchers))
	for round := range c.Rounds {
		for _, i := range inTurn(len(c.Dispatchers), round) {
			n := c.Dispatchers[i]
			b.say("round %d of %d: %d dispatchers", round+1, c.Rounds, n)
			if err := c.drain(ctx, r, n, &found[i]); err != nil {
				return fmt.Errorf("%d dispatchers: %w", n, err)
			}
			if err := c.steady(ctx, r, n, &found[i]); err != nil {
				return fmt.Errorf("%d dispatchers: %w", n, err)
			}
		}
	}
	c.report(b, found)
	return nil
}

// maxFleet dispatchers still fit into the connections of the private server.
const maxFleet = 16

// drain lets n dispatchers drain a backlog.
func (c *scaleCmd) drain(ctx context.Context, r *rig, n int, found *scaled) (err error) {
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	if err := l.fill(ctx, c.Tasks); err != nil {
		return err
	}
	seen := &claims{progress: newProgress(c.Tasks)}
	p, err := fleet{l, n, seen}.start(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	timeout := time.NewTimer(patience(c.Tasks, smallBytes))
	defer timeout.Stop()
	select {
	case <-seen.done:
	case <-timeout.C:
		return fmt.Errorf("%d of %d tasks are settled after %v: the dispatchers stand still or crawl", seen.settled.Load(), c.Tasks, patience(c.Tasks, smallBytes))
	case <-p.ended:
		return errors.Join(errors.New("the backlog is not drained"), p.died())
	case <-ctx.Done():
		return ctx.Err()
	}
	found.drainEmpty = append(found.drainEmpty, float64(seen.empty.Load())/float64(c.Tasks))
	found.drain = append(found.drain, float64(c.Tasks)/seen.took().Seconds())
	return l.verify(ctx, c.Tasks)
}

// steady lets n dispatchers serve producers.
func (c *scaleCmd) steady(ctx context.Context, r *rig, n int, found *scaled) (err error) {
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	seen := &claims{progress: newProgress(0)}
	f, err := newFeed(ctx, l, pace{c.Rate, compareProducers}, c.Slice, fleet{l, n, seen}.start)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, f)
	count, err := countNotified(ctx, l)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, count)
	if err := f.slice(ctx); err != nil {
		return err
	}
	notices, err := count.total(ctx)
	if err != nil {
		return err
	}
	found.p50 = append(found.p50, f.percentiles(50, delivery)...)
	found.p99 = append(found.p99, f.percentiles(99, delivery)...)
	found.steadyEmpty = append(found.steadyEmpty, float64(seen.empty.Load())/float64(f.sent))
	found.notices = append(found.notices, float64(notices)/float64(f.sent))
	return f.verify(ctx)
}

func (c *scaleCmd) report(b *bench, found []scaled) {
	rep := b.report
	rep.setting("product", "dispatchers within the bench process")
	rep.setting("load", fmt.Sprintf("a backlog of %d tasks; %g tasks/s on %d connections for %v", c.Tasks, c.Rate, compareProducers, c.Slice))
	speed, p50, p99 := line{Name: "drain"}, line{Name: "p50"}, line{Name: "p99"}
	for i, n := range c.Dispatchers {
		f := found[i]
		for _, part := range []struct {
			key, title, unit string
			runs             series
		}{
			{"drain_per_s", "drained", "tasks/s", f.drain},
			{"drain_empty_claims_per_task", "  claims in vain, of a drain", "per task", f.drainEmpty},
			{"p50_ms", "  commit to delivery, steady, p50", "ms", f.p50},
			{"p99_ms", "  commit to delivery, steady, p99", "ms", f.p99},
			{"empty_claims_per_task", "  claims in vain, steady", "per task", f.steadyEmpty},
			{"notifies_per_task", "  notifications of producers, steady", "per task", f.notices},
		} {
			rep.row(fmt.Sprintf("%d: %s", n, part.title), part.unit, part.runs)
			rep.key(fmt.Sprintf("%s_%d", part.key, n), part.runs.median())
		}
		speed.Points = append(speed.Points, [2]float64{float64(n), f.drain.median()})
		p50.Points = append(p50.Points, [2]float64{float64(n), f.p50.median()})
		p99.Points = append(p99.Points, [2]float64{float64(n), f.p99.median()})
	}
	rep.chart(chart{Name: "scale-drain", Title: "Draining a backlog", X: "dispatchers", Y: "tasks/s", Lines: []line{speed}})
	rep.chart(chart{Name: "scale-latency", Title: fmt.Sprintf("Commit to delivery at %g tasks/s", c.Rate), X: "dispatchers", Y: "ms", Lines: []line{p50, p99}})
}
