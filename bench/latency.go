package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// latencyCmd is "bench latency".
type latencyCmd struct {
	Rate      float64       `default:"200" help:"Tasks per second."`
	Producers int           `default:"4" help:"Connections that insert."`
	Slices    int           `placeholder:"N" help:"Slices of each of product and floor, alternating. Default 6, with --long 10."`
	Slice     time.Duration `placeholder:"TIME" help:"Length of a slice. Default 2.5s, with --long 10s."`
}

const (
	// wantRatio is the design's target for the median latency over the floor's.
	wantRatio = 1.5
	// floorRate is the most that the floor, which is one chain, is asked for.
	floorRate = 200
	// arrival is how long a slice waits for its last message.
	arrival = 20 * time.Second
)

// Run measures and reports.
func (c *latencyCmd) Run(ctx context.Context, b *bench) (err error) {
	if c.Rate <= 0 || c.Producers < 1 || c.Slices < 0 || c.Slice < 0 {
		return errors.New("--rate, --producers, --slices and --slice must be positive")
	}
	slices := cmp.Or(c.Slices, b.counted(6, 10))
	length := cmp.Or(c.Slice, time.Duration(b.counted(2500, 10_000))*time.Millisecond)
	r, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	m := &latencyRun{b: b, pace: pace{c.Rate, c.Producers}, length: length, board: newBoard()}
	if err := m.open(ctx, r); err != nil {
		return errors.Join(err, m.close(ctx))
	}
	defer deferClose(ctx, &err, m)

	var product []*taskTimes
	var floor []*floorTimes
	for i := range slices {
		b.say("slice %d of %d", i+1, slices)
		// Floor and product swap places, so that a steady drift of the
		// machine hits both alike.
		for j := range 2 {
			if (i+j)%2 == 0 {
				t, err := m.floorSlice(ctx)
				if err != nil {
					return err
				}
				floor = append(floor, t)
				continue
			}
			t, err := m.productSlice(ctx)
			if err != nil {
				return err
			}
			product = append(product, t)
		}
	}
	if err := m.tasks.verify(ctx, m.sent); err != nil {
		return err
	}
	c.describe(b, length)
	reportLatency(b.report, product, floor, m.board.again)
	b.report.key("rate", c.Rate)
	return nil
}

func (c *latencyCmd) describe(b *bench, length time.Duration) {
	b.report.setting("product", b.form())
	b.report.setting("load", fmt.Sprintf("%g tasks/s on %d connections, one INSERT per transaction, slices of %v", c.Rate, c.Producers, length))
}

// latencyRun is the state of the scenario.
type latencyRun struct {
	b            *bench
	pace         pace
	length       time.Duration
	tasks, floor *lane
	producers    []*pgx.Conn
	nc           *nats.Conn
	board        *board
	sent         int
}

func (m *latencyRun) open(ctx context.Context, r *rig) (err error) {
	if m.tasks, err = r.newLane(ctx); err != nil {
		return err
	}
	if m.floor, err = newFloorLane(ctx, r); err != nil {
		return err
	}
	for range m.pace.workers {
		conn, err := pgx.Connect(ctx, r.dsn)
		if err != nil {
			return fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		m.producers = append(m.producers, conn)
	}
	// A plain subscription: what a stream's consumer adds is not ours.
	if m.nc, err = r.connect("subscriber"); err != nil {
		return err
	}
	_, err = m.nc.Subscribe(m.tasks.prefix+".>", func(msg *nats.Msg) {
		at := time.Now()
		// A message without a number is no task's; verify finds out.
		if id, err := strconv.ParseInt(msg.Header.Get(dispatcher.HeaderTaskID), 10, 64); err == nil {
			m.board.delivered(id, at)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return m.nc.FlushTimeout(setupTimeout)
}

func (m *latencyRun) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	var errs []error
	if m.nc != nil {
		m.nc.Close()
	}
	for _, conn := range m.producers {
		errs = append(errs, conn.Close(ctx))
	}
	for _, l := range []*lane{m.tasks, m.floor} {
		if l != nil {
			errs = append(errs, l.close(ctx))
		}
	}
	return errors.Join(errs...)
}

// count is how many actions of a rate a slice has, and how many come before it
// unmeasured, while connections, plans and caches get warm.
func (m *latencyRun) count(rate float64) (warmUp, measured int) {
	const warm = 500 * time.Millisecond
	return int(rate*warm.Seconds()) + 20, int(rate*m.length.Seconds()) + 1
}

// productSlice runs the product for a slice. It is stopped afterwards: its
// listener would be woken by the floor's notifications too.
func (m *latencyRun) productSlice(ctx context.Context) (_ *taskTimes, err error) {
	p, err := m.b.runProduct(ctx, m.tasks, nil)
	if err != nil {
		return nil, err
	}
	defer deferClose(ctx, &err, p)
	warmUp, measured := m.count(m.pace.rate)
	if err := m.send(ctx, p, warmUp, newTaskTimes()); err != nil {
		return nil, err
	}
	times := newTaskTimes()
	return times, m.send(ctx, p, measured, times)
}

// send inserts n tasks, each in a transaction of its own, and waits until all
// have arrived.
func (m *latencyRun) send(ctx context.Context, p *product, n int, times *taskTimes) error {
	arrived := m.board.expect(n, times)
	insert := m.tasks.named(`insert into {outbox} (kind, payload) select $1, ` + payloadSQL + ` from (values ($2::int)) as v(n) returning id`)
	err := m.pace.run(ctx, n, func(ctx context.Context, worker int, due time.Time) error {
		begun := time.Now()
		var id int64
		if err := m.producers[worker].QueryRow(ctx, insert, kind, worker).Scan(&id); err != nil {
			return fmt.Errorf("insert a task: %w", err)
		}
		m.board.inserted(id, stamp{due: due, committed: time.Now()}, begun)
		return nil
	})
	if err != nil {
		return err
	}
	m.sent += n
	timeout := time.NewTimer(arrival)
	defer timeout.Stop()
	select {
	case <-arrived:
		return nil
	case <-p.ended:
		return errors.Join(errors.New("tasks have not arrived"), p.died())
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return fmt.Errorf("%d of %d tasks have not arrived after %v", m.board.missing(), n, arrival)
	}
}

func (m *latencyRun) floorSlice(ctx context.Context) (_ *floorTimes, err error) {
	f, err := openFloor(ctx, m.floor)
	if err != nil {
		return nil, err
	}
	defer deferClose(ctx, &err, f)
	chain := pace{min(m.pace.rate, floorRate), 1}
	warmUp, measured := m.count(chain.rate)
	times := newFloorTimes()
	for _, part := range []struct {
		n     int
		times *floorTimes
	}{{warmUp, newFloorTimes()}, {measured, times}} {
		err := chain.run(ctx, part.n, func(ctx context.Context, _ int, _ time.Time) error { return f.probe(ctx, part.n, part.times) })
		if err != nil {
			return nil, err
		}
	}
	return times, nil
}

// reportLatency fills the report: the figures of each slice, and the pairs.
func reportLatency(rep *report, product []*taskTimes, floor []*floorTimes, again int) {
	taskRow := func(name string, percentile float64, of func(*taskTimes) durations) series {
		var s series
		for _, t := range product {
			s = append(s, of(t).ms(percentile))
		}
		rep.row(name, "ms", s)
		return s
	}
	floorRow := func(name string, percentile float64, of func(*floorTimes) durations) series {
		var s series
		for _, t := range floor {
			s = append(s, of(t).ms(percentile))
		}
		rep.row(name, "ms", s)
		return s
	}
	delivery := func(t *taskTimes) durations { return t.delivery }
	whole := func(t *taskTimes) durations { return t.whole }
	sum := func(t *floorTimes) durations { return t.sum }

	p50 := taskRow("product, commit to delivery, p50", 50, delivery)
	taskRow("product, commit to delivery, p99", 99, delivery)
	floorP50 := floorRow("floor, notify + claim + publish, p50", 50, sum)
	floorRow("floor, notify + claim + publish, p99", 99, sum)
	floorRow("  notify one way, p50", 50, func(t *floorTimes) durations { return t.notify })
	floorRow("  claim round trip, p50", 50, func(t *floorTimes) durations { return t.claim })
	floorRow("  publish round trip, p50", 50, func(t *floorTimes) durations { return t.publish })
	rep.row("product p50 over floor p50, side by side", "", ratios(p50, floorP50))
	taskRow("from the time the insert was due to delivery, p50", 50, whole)
	taskRow("from the time the insert was due to delivery, p99", 99, whole)
	taskRow("producer behind its schedule, p99", 99, func(t *taskTimes) durations { return t.late })
	taskRow("insert and commit, p50", 50, func(t *taskTimes) durations { return t.commit })

	all, allWhole, allFloor := newDurations(), newDurations(), newDurations()
	for _, t := range product {
		all.merge(t.delivery)
		allWhole.merge(t.whole)
	}
	for _, t := range floor {
		allFloor.merge(t.sum)
	}
	ratio := p50.median() / floorP50.median()
	rep.note("%d tasks and %d floor probes measured; p99 below is that of all of them", all.count(), allFloor.count())
	if again > 0 {
		rep.note("%d messages were delivered more than once", again)
	}
	rep.target("ratio_p50", ratio, ratio <= wantRatio, "at most "+number(wantRatio))
	rep.key("ratio_p50", ratio)
	rep.key("p50_ms", p50.median())
	rep.key("p99_ms", all.ms(99))
	rep.key("floor_p50_ms", floorP50.median())
	rep.key("floor_p99_ms", allFloor.ms(99))
	rep.key("due_p50_ms", allWhole.ms(50))
	rep.key("due_p99_ms", allWhole.ms(99))
}
