package scenario

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

// drainFigures are what each round took.
type drainFigures struct{ product, claim, publish []span }

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
func (c *drainCmd) product(ctx context.Context, b *bench, r *rig, spans *[]span) (err error) {
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
	if c.CPUProfile != "" && len(*spans) == 0 {
		if stopProfile, err = profile(c.CPUProfile); err != nil {
			return err
		}
	}
	took, err := b.drain(ctx, l, c.Tasks)
	if err := errors.Join(err, stopProfile()); err != nil {
		return err
	}
	*spans = append(*spans, took)
	return l.verify(ctx, c.Tasks)
}

// ceiling measures what a part of the work takes alone.
func (c *drainCmd) ceiling(ctx context.Context, b *bench, r *rig, name string, spans *[]span,
	measure func(context.Context, *lane, int) (span, error),
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
	*spans = append(*spans, took)
	return nil
}

// drain runs the product until n tasks are settled. The time runs from the start
// of the first claim to the last settlement.
func (b *bench) drain(ctx context.Context, l *lane, n int) (took span, err error) {
	if b.Process {
		return b.drainByDaemon(ctx, l, n)
	}
	p := newProgress(n)
	stop := l.rig.watch()
	d, err := b.runProduct(ctx, l, p)
	if err != nil {
		return span{}, err
	}
	defer deferClose(ctx, &err, d)
	timeout := time.NewTimer(patience(n, smallBytes))
	defer timeout.Stop()
	select {
	case <-p.done:
		return span{wall: p.took(), cpu: stop().cpu}, nil
	case <-timeout.C:
		return span{}, fmt.Errorf("%d of %d tasks are settled after %v: the dispatcher stands still or crawls", p.settled.Load(), n, patience(n, smallBytes))
	case <-d.ended:
		return span{}, errors.Join(errors.New("the backlog is not drained"), d.died())
	case <-ctx.Done():
		return span{}, ctx.Err()
	}
}

// drainByDaemon is drain for a daemon, which has no observer: the time runs from
// the first message that the stream is seen to have.
func (b *bench) drainByDaemon(ctx context.Context, l *lane, n int) (took span, err error) {
	if err := l.rig.build(ctx, b); err != nil {
		return span{}, err
	}
	stop := l.rig.watch()
	d, err := b.runDaemon(ctx, l)
	if err != nil {
		return span{}, err
	}
	defer deferClose(ctx, &err, d)
	var begun time.Time
	if err := l.drained(ctx, d, n, patience(n, smallBytes), &begun); err != nil {
		return span{}, err
	}
	return span{wall: time.Since(begun), cpu: stop(d.pid).cpu}, nil
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
	rep := b.report
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%d tasks of about 200 bytes in the table; %d claims of %d in hand at once",
		c.Tasks, dispatcher.DefaultWorkers, dispatcher.DefaultBatch))
	product, claim, publish := c.speeds(f.product), c.speeds(f.claim), c.speeds(f.publish)
	both := combined(claim, publish)
	rep.row("product: drained", "tasks/s", product)
	rep.row("ceiling a: claim and settle, no publishing", "tasks/s", claim)
	rep.row("ceiling b: publish, no database", "tasks/s", publish)
	rep.row("both ceilings one after the other, 1/(1/a+1/b)", "tasks/s", both)
	rep.row("product over that, round by round", "", ratios(product, both))
	ratio := product.median() / combined(series{claim.median()}, series{publish.median()}).median()
	rep.target("drain_vs_ceiling", ratio, ratio >= wantDrain, "at least "+number(wantDrain))
	rep.key("drain_per_s", product.median())
	rep.key("drain_vs_ceiling", ratio)
	rep.key("claim_per_s", claim.median())
	rep.key("publish_per_s", publish.median())
	if f.product[0].cpu == 0 {
		return
	}
	productCPU, claimCPU, publishCPU := c.cpus(f.product), c.cpus(f.claim), c.cpus(f.publish)
	rep.row("CPU of product, PostgreSQL and NATS together", "us/task", productCPU)
	rep.row("the same for ceiling a", "us/task", claimCPU)
	rep.row("the same for ceiling b", "us/task", publishCPU)
	rep.key("cpu_us_per_task", productCPU.median())
	rep.key("cpu_vs_ceiling", (claimCPU.median()+publishCPU.median())/productCPU.median())
}

func (c *drainCmd) speeds(spans []span) (s series) {
	for _, took := range spans {
		s = append(s, took.perSecond(c.Tasks))
	}
	return s
}

func (c *drainCmd) cpus(spans []span) (s series) {
	for _, took := range spans {
		s = append(s, took.cpuPerTask(c.Tasks))
	}
	return s
}

// combined is, run by run, the speed of two kinds of work that share the machine
// and each need all of it.
func combined(a, b series) (s series) {
	for i := range min(len(a), len(b)) {
		s = append(s, 1/(1/a[i]+1/b[i])) // #nosec G602 -- within both
	}
	return s
}
