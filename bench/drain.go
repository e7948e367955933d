package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// drainCmd is "bench drain".
type drainCmd struct {
	Tasks      int    `default:"200000" help:"Size of the backlog."`
	Rounds     int    `default:"3" help:"Rounds of product and ceilings at most, alternating."`
	CPUProfile string `name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile of this process while the dispatcher drains its first backlog."`
}

const (
	// wantDrain is the design's target for the speed over the ceilings'.
	wantDrain = 0.9
	// drainBudget is when no further round is begun without --long: the
	// scenario has to end within 50 s.
	drainBudget = 45 * time.Second
)

// drainFigures are the speeds of each round, in tasks per second.
type drainFigures struct{ product, claim, publish series }

// Run measures and reports.
func (c *drainCmd) Run(ctx context.Context, b *bench) (err error) {
	if c.Tasks < 1 || c.Rounds < 1 {
		return fmt.Errorf("--tasks and --rounds must be positive, got %d and %d", c.Tasks, c.Rounds)
	}
	begun := time.Now()
	r, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	var f drainFigures
	parts := []func(context.Context, *bench, *rig) error{
		func(ctx context.Context, b *bench, r *rig) error { return c.product(ctx, b, r, &f.product) },
		func(ctx context.Context, b *bench, r *rig) error {
			return c.ceiling(ctx, b, r, "claim and settle", &f.claim, claimCeiling)
		},
		func(ctx context.Context, b *bench, r *rig) error {
			return c.ceiling(ctx, b, r, "publish", &f.publish, publishCeiling)
		},
	}
	for round := range c.Rounds {
		started := time.Now()
		// Each part comes first once: what drifts with time hits all alike.
		for i := range parts {
			if err := parts[(round+i)%len(parts)](ctx, b, r); err != nil {
				return err
			}
		}
		if took := time.Since(started); !b.long && time.Since(begun)+took > drainBudget {
			break
		}
	}
	if len(f.product) < c.Rounds {
		b.report.note("%d of %d rounds fitted into %v; --long takes all", len(f.product), c.Rounds, drainBudget)
	}
	c.reportDrain(b, f)
	return nil
}

// product drains a fresh backlog with the dispatcher.
func (c *drainCmd) product(ctx context.Context, b *bench, r *rig, speed *series) (err error) {
	b.say("draining %d tasks", c.Tasks)
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	if err := l.fill(ctx, c.Tasks); err != nil {
		return err
	}
	stopProfile := func() error { return nil }
	if c.CPUProfile != "" && len(*speed) == 0 {
		if stopProfile, err = profile(c.CPUProfile); err != nil {
			return err
		}
	}
	took, err := b.drain(ctx, l, c.Tasks)
	if err := errors.Join(err, stopProfile()); err != nil {
		return err
	}
	*speed = append(*speed, float64(c.Tasks)/took.Seconds())
	return l.verify(ctx, c.Tasks)
}

// ceiling measures what a part of the work takes alone.
func (c *drainCmd) ceiling(ctx context.Context, b *bench, r *rig, name string, speed *series,
	measure func(context.Context, *lane, int) (time.Duration, error),
) (err error) {
	b.say("ceiling: %s", name)
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	took, err := measure(ctx, l, c.Tasks)
	if err != nil {
		return err
	}
	*speed = append(*speed, float64(c.Tasks)/took.Seconds())
	return nil
}

// drain runs the product until n tasks are settled, and returns the time from
// the start of the first claim to the last settlement.
func (b *bench) drain(ctx context.Context, l *lane, n int) (took time.Duration, err error) {
	if b.Process {
		return b.drainByDaemon(ctx, l, n)
	}
	p := newProgress(n)
	d, err := b.runProduct(ctx, l, p)
	if err != nil {
		return 0, err
	}
	defer deferClose(ctx, &err, d)
	timeout := time.NewTimer(patience(n, smallBytes))
	defer timeout.Stop()
	select {
	case <-p.done:
		return p.took(), nil
	case <-timeout.C:
		return 0, fmt.Errorf("%d of %d tasks are settled after %v: the dispatcher stands still or crawls", p.settled.Load(), n, patience(n, smallBytes))
	case <-d.ended:
		return 0, errors.Join(errors.New("the backlog is not drained"), d.died())
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// drainByDaemon is drain for a daemon, which has no observer: the time runs from
// the first message that the stream is seen to have.
func (b *bench) drainByDaemon(ctx context.Context, l *lane, n int) (took time.Duration, err error) {
	d, err := b.runDaemon(ctx, l)
	if err != nil {
		return 0, err
	}
	defer deferClose(ctx, &err, d)
	var begun time.Time
	if err := l.drained(ctx, d, n, patience(n, smallBytes), &begun); err != nil {
		return 0, err
	}
	return time.Since(begun), nil
}

func profile(path string) (stop func() error, err error) {
	f, err := os.Create(path) // #nosec G304 -- the user names it
	if err != nil {
		return nil, fmt.Errorf("write a CPU profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("write a CPU profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func (c *drainCmd) reportDrain(b *bench, f drainFigures) {
	form := "dispatcher within the bench process"
	if b.Process {
		form = "daemon as a process"
	}
	b.report.setting("product", form)
	b.report.setting("load", fmt.Sprintf("%d tasks of about 200 bytes in the table; %d claims of %d in hand at once",
		c.Tasks, dispatcher.DefaultWorkers, dispatcher.DefaultBatch))
	both := f.ceiling()
	b.report.row("product: drained", "tasks/s", f.product)
	b.report.row("ceiling a: claim and settle, no publishing", "tasks/s", f.claim)
	b.report.row("ceiling b: publish, no database", "tasks/s", f.publish)
	b.report.row("both ceilings one after the other, 1/(1/a+1/b)", "tasks/s", both)
	b.report.row("product over that, round by round", "", ratios(f.product, both))
	ratio := f.product.median() / combined(f.claim.median(), f.publish.median())
	b.report.target("drain_vs_ceiling", ratio, ratio >= wantDrain, "at least "+number(wantDrain))
	b.report.key("drain_per_s", f.product.median())
	b.report.key("drain_vs_ceiling", ratio)
	b.report.key("claim_per_s", f.claim.median())
	b.report.key("publish_per_s", f.publish.median())
}

// combined is the speed of two kinds of work that share the machine and each
// need all of it.
func combined(a, b float64) float64 { return 1 / (1/a + 1/b) }

func (f drainFigures) ceiling() series {
	var s series
	for i := range f.product {
		s = append(s, combined(f.claim[i], f.publish[i]))
	}
	return s
}
