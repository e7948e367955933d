package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// latencyCmd is "bench latency".
type latencyCmd struct {
	Rate      float64       `default:"200" help:"Tasks per second."`
	Producers int           `default:"4" help:"Connections that insert."`
	Wake      []string      `default:"notify" enum:"notify,wal,poll" help:"Ways to wake that are measured side by side, at --rate; notify always is."`
	BusyRate  float64       `default:"3000" help:"Tasks per second of the slices under load, which insert on 16 connections. 0: no such slices."`
	Sweep     bool          `help:"Measure the product alone at rates from 10/s until the machine is saturated."`
	Slices    int           `placeholder:"N" help:"Slices of each of what is compared, alternating. Default 5, with --long 10."`
	Slice     time.Duration `placeholder:"TIME" help:"Length of a slice. Default 1.2s, with --long 10s."`
}

const (
	// The design's targets: for the median latency over the floor's, over that of
	// a dispatcher that each insert notifies, and in ms under load; and for the time
	// in ms after which notifications are no longer masked.
	wantRatio     = 1.25
	wantAsClassic = 1.1
	wantBusyP50   = 1.5
	wantUnmask    = 50
	// floorRate is the most that the floor, which is one chain, is asked for.
	floorRate = 200
	// busyProducers are enough for a commit to take some milliseconds.
	busyProducers = 16
)

// Run measures and reports.
func (c *latencyCmd) Run(ctx context.Context, b *bench) (err error) {
	if c.Rate <= 0 || c.BusyRate < 0 || c.Producers < 1 || c.Slices < 0 || c.Slice < 0 {
		return errors.New("--rate, --producers, --slices and --slice must be positive, --busy-rate must not be negative")
	}
	if c.Sweep {
		return c.sweep(ctx, b)
	}
	slices := cmp.Or(c.Slices, b.counted(5, 10))
	length := cmp.Or(c.Slice, time.Duration(b.counted(1200, 10_000))*time.Millisecond)
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	m := &latencyRun{cmd: c, length: length, steps: newStepTimes()}
	if err := m.open(ctx, b, r); err != nil {
		return errors.Join(err, m.close(ctx))
	}
	defer deferClose(ctx, &err, m)

	parts := []func(context.Context) error{m.floorSlice}
	for _, f := range m.feeds() {
		parts = append(parts, f.slice)
	}
	for i := range slices {
		b.say("slice %d of %d", i+1, slices)
		// They swap places, so that a steady drift of the machine hits all alike.
		for _, part := range inTurn(len(parts), i) {
			if err := parts[part](ctx); err != nil {
				return err
			}
		}
	}
	for _, f := range m.feeds() {
		if err := f.verify(ctx); err != nil {
			return err
		}
	}
	m.report(b)
	return nil
}

// latencyRun is the state of the scenario.
type latencyRun struct {
	cmd    *latencyCmd
	length time.Duration
	// product is the dispatcher as it is shipped, classic one that each insert
	// notifies, busy the former under load, and relay the floor under the same
	// load, both nil if that is left out.
	product, classic, busy, relay *feed
	others                        []*feed    // other ways to wake
	steps                         *stepTimes // of product
	floor                         *lane
	floors                        []*floorTimes
}

func (m *latencyRun) open(ctx context.Context, b *bench, r *rig) (err error) {
	quiet := pace{m.cmd.Rate, m.cmd.Producers}
	if m.product, err = b.openFeed(ctx, r, masked, quiet, m.length, m.steps); err != nil {
		return err
	}
	if m.classic, err = b.openFeed(ctx, r, classic, quiet, m.length, nil); err != nil {
		return err
	}
	for _, v := range []variant{wal, none} {
		if !slices.Contains(m.cmd.Wake, string(v.wake)) {
			continue
		}
		if v.wake == dispatcher.WakeWAL {
			if err := r.decodes(ctx); err != nil {
				return err
			}
		}
		f, err := b.openFeed(ctx, r, v, quiet, m.length, nil)
		if err != nil {
			return err
		}
		m.others = append(m.others, f)
	}
	if loaded := (pace{m.cmd.BusyRate, busyProducers}); m.cmd.BusyRate > 0 {
		if m.busy, err = b.openFeed(ctx, r, masked, loaded, m.length, nil); err != nil {
			return err
		}
		l, err := newFloorLane(ctx, r)
		if err != nil {
			return err
		}
		start := func(ctx context.Context) (*product, error) { return runRelay(ctx, l) }
		if m.relay, err = newFeed(ctx, l, loaded, m.length, start); err != nil {
			return err
		}
	}
	m.floor, err = newFloorLane(ctx, r)
	return err
}

// feeds are those that there are.
func (m *latencyRun) feeds() (feeds []*feed) {
	for _, f := range append([]*feed{m.product, m.classic, m.busy, m.relay}, m.others...) {
		if f != nil {
			feeds = append(feeds, f)
		}
	}
	return feeds
}

func (m *latencyRun) close(ctx context.Context) error {
	var errs []error
	for _, f := range m.feeds() {
		errs = append(errs, f.close(ctx))
	}
	if m.floor != nil {
		errs = append(errs, m.floor.close(ctx))
	}
	return errors.Join(errs...)
}

func (m *latencyRun) floorSlice(ctx context.Context) (err error) {
	f, err := openFloor(ctx, m.floor)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, f)
	chain := pace{min(m.cmd.Rate, floorRate), 1}
	warmUp, measured := sliceCounts(chain.rate, m.length)
	times := newFloorTimes()
	for _, part := range []struct {
		n     int
		times *floorTimes
	}{{warmUp, newFloorTimes()}, {measured, times}} {
		err := chain.run(ctx, part.n, func(ctx context.Context, _ int, _ time.Time) error { return f.probe(ctx, part.n, part.times) })
		if err != nil {
			return err
		}
	}
	m.floors = append(m.floors, times)
	return nil
}

// report fills the report: the figures of each slice, and the pairs.
func (m *latencyRun) report(b *bench) {
	rep, c := b.report, m.cmd
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%g tasks/s on %d connections, one INSERT per transaction, slices of %v", c.Rate, c.Producers, m.length))
	m.reportFloor(rep)
	m.reportWhole(rep)
	rep.key("rate", c.Rate)
	m.reportClassic(rep)
	m.reportWakes(rep)
	if m.busy != nil {
		m.reportBusy(rep)
	}
	for _, f := range m.feeds() {
		if again := f.board.again; again > 0 {
			rep.note("%d messages at %g/s were delivered more than once", again, f.pace.rate)
		}
	}
}

func delivery(t *taskTimes) durations { return t.delivery }
func whole(t *taskTimes) durations    { return t.whole }
