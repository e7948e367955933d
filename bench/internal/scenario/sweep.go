package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// sweepStep is the factor between the rates beyond the fixed ones.
	sweepStep = 1.25
	// sweepMost is a rate that no machine reaches with single inserts on so few
	// connections.
	sweepMost = 200_000
	// keptUp is the median time, from when an insert was due to the delivery, up to which
	// a rate counts as one that is reached: beyond it, tasks queue up.
	keptUp = 50 * time.Millisecond
)

// sweepRates are the rates that are measured in any case.
var sweepRates = []float64{10, 50, 200, 500, 1000, 2000, 3000}

// swept is one rate of a sweep.
type swept struct {
	rate            float64
	p50, p99, whole series // ms, a slice each
	all             durations
}

// sweep measures rate after rate, until the machine is saturated.
func (c *latencyCmd) sweep(ctx context.Context, b *bench) (err error) {
	rounds := cmp.Or(c.Slices, b.counted(2, 5))
	length := cmp.Or(c.Slice, time.Duration(b.counted(1000, 5000))*time.Millisecond)
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	var found []*swept
	for round := range rounds {
		for i := 0; ; i++ {
			if i == len(found) {
				if round > 0 {
					break // as far as the first round came
				}
				found = append(found, &swept{rate: sweepRate(i), all: newDurations()})
			}
			s := found[i]
			b.say("round %d of %d: %g/s", round+1, rounds, s.rate)
			if err := s.measure(ctx, b, r, length); err != nil {
				return fmt.Errorf("%g/s: %w", s.rate, err)
			}
			if round == 0 && (s.saturated() || s.rate >= sweepMost) {
				break
			}
		}
	}
	if found[0].saturated() {
		return errors.New("even the lowest rate is too much for this machine")
	}
	reportSweep(b, found, length)
	return nil
}

// sweepRate is the rate number i.
func sweepRate(i int) float64 {
	if i < len(sweepRates) {
		return sweepRates[i]
	}
	const hundreds = 100
	rate := sweepRates[len(sweepRates)-1]
	for range i - len(sweepRates) + 1 {
		rate *= sweepStep
	}
	return float64(int(rate/hundreds)) * hundreds
}

// measure is one slice, on an outbox of its own.
func (s *swept) measure(ctx context.Context, b *bench, r *rig, length time.Duration) (err error) {
	f, err := b.openFeed(ctx, r, masked, pace{s.rate, busyProducers}, length, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, f)
	if err := f.slice(ctx); err != nil {
		return err
	}
	s.p50 = append(s.p50, f.percentiles(50, delivery)...)
	s.p99 = append(s.p99, f.percentiles(99, delivery)...)
	s.whole = append(s.whole, f.percentiles(50, whole)...)
	s.all.merge(f.all(delivery))
	return f.verify(ctx)
}

func (s *swept) saturated() bool { return s.whole.median() > inMS(keptUp) }

func reportSweep(b *bench, found []*swept, length time.Duration) {
	rep := b.report
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%d connections, one INSERT per transaction, slices of %v; a rate is reached if the median from due to delivery is at most %v", busyProducers, length, keptUp))
	p50, p99, due := line{Name: "p50"}, line{Name: "p99"}, line{Name: "p50, from when the insert was due"}
	var cdf []line
	saturation := 0.0
	for _, s := range found {
		rep.row(fmt.Sprintf("%g/s, commit to delivery, p50", s.rate), "ms", s.p50)
		rep.row("  p99", "ms", s.p99)
		rep.row("  from the time the insert was due to delivery, p50", "ms", s.whole)
		rep.key(fmt.Sprintf("p50_ms_%g", s.rate), s.p50.median())
		rep.key(fmt.Sprintf("p99_ms_%g", s.rate), s.all.ms(99))
		p50.Points = append(p50.Points, [2]float64{s.rate, s.p50.median()})
		p99.Points = append(p99.Points, [2]float64{s.rate, s.all.ms(99)})
		due.Points = append(due.Points, [2]float64{s.rate, s.whole.median()})
		cdf = append(cdf, line{Name: fmt.Sprintf("%g/s", s.rate), Points: s.all.cdf()})
		if !s.saturated() {
			saturation = s.rate
		}
	}
	rep.key("saturation_per_s", saturation)
	rep.chart(chart{Name: "latency-sweep", Title: "Commit to delivery", X: "tasks/s", Y: "ms", LogX: true, LogY: true, Lines: []line{p50, p99, due}})
	rep.chart(chart{Name: "latency-cdf", Title: "Commit to delivery", X: "ms", Y: "percent of the tasks", LogX: true, Lines: cdf})
}
