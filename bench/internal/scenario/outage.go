package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// outageCmd is "bench outage".
type outageCmd struct {
	Rate float64       `default:"500" help:"Tasks per second, on 4 connections, before, during and after."`
	Away time.Duration `placeholder:"TIME" help:"How long NATS is away. Default 10s, with --long 60s."`
}

// outageAround is the time before and after.
const outageAround = 3 * time.Second

// The phases of an outage, in which commits are timed apart.
const (
	outageBefore = iota
	outageDuring
	outageAfter
	outagePhases
)

// outageRun is the state of the scenario.
type outageRun struct {
	cmd     *outageCmd
	lane    *lane
	writers *writers
	product *product
	phase   atomic.Int32
	// commits are those of each worker in each phase.
	commits [compareProducers][outagePhases]durations
	sent    atomic.Int64

	updates  float64 // rows per second while NATS was away
	attempts int
	waiting  int // tasks when NATS was back
	catchUp  time.Duration
}

// Run measures and reports.
func (c *outageCmd) Run(ctx context.Context, b *bench) (err error) {
	c.Away = cmp.Or(c.Away, time.Duration(b.counted(10, 60))*time.Second)
	if c.Rate <= 0 || c.Away < time.Second {
		return fmt.Errorf("--rate must be positive and --away at least 1s, got %g and %v", c.Rate, c.Away)
	}
	if b.NATS != "" {
		return errors.New("outage stops and starts its own NATS server: leave out --nats")
	}
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	m := &outageRun{cmd: c, lane: l}
	for worker := range m.commits {
		for phase := range m.commits[worker] {
			m.commits[worker][phase] = newDurations()
		}
	}
	if m.writers, err = openWriters(ctx, l, compareProducers, 0); err != nil {
		return err
	}
	defer deferClose(ctx, &err, m.writers)
	if m.product, err = b.runProduct(ctx, l, nil); err != nil {
		return err
	}
	defer deferClose(ctx, &err, m.product)
	if err := l.warmUp(ctx, m.product); err != nil {
		return err
	}
	m.sent.Add(1)
	if err := m.run(ctx, b, r.broker); err != nil {
		return err
	}
	m.report(b)
	return nil
}

// run lets the producers write while NATS goes and comes back.
func (m *outageRun) run(ctx context.Context, b *bench, nats *broker) error {
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return m.produce(running) })
	g.Go(func() error { return m.disturb(running, b, nats) })
	if err := g.Wait(); err != nil {
		return err
	}
	n := int(m.sent.Load())
	if err := m.lane.drained(ctx, m.product, n, patience(n, smallBytes), nil); err != nil {
		return err
	}
	if err := m.lane.rig.pool.QueryRow(ctx, m.lane.named(`select max(attempts) from {outbox}`)).Scan(&m.attempts); err != nil {
		return fmt.Errorf("read the attempts: %w", err)
	}
	return m.lane.verify(ctx, n)
}

func (m *outageRun) produce(ctx context.Context) error {
	length := m.cmd.Away + 2*outageAround
	return pace{m.cmd.Rate, compareProducers}.run(ctx, int(m.cmd.Rate*length.Seconds())+1, func(ctx context.Context, worker int, _ time.Time) error {
		begun, phase := time.Now(), m.phase.Load()
		if err := m.writers.commits[worker](ctx); err != nil {
			return err
		}
		m.sent.Add(1)
		m.commits[worker][phase].add(time.Since(begun))
		return nil
	})
}

func (m *outageRun) disturb(ctx context.Context, b *bench, nats *broker) error {
	if err := pause(ctx, m.product, outageAround); err != nil {
		return err
	}
	b.say("NATS goes away for %v", m.cmd.Away)
	nats.stop()
	m.phase.Store(outageDuring)
	before, err := m.updated(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, m.product, m.cmd.Away); err != nil {
		return err
	}
	after, err := m.updated(ctx)
	if err != nil {
		return err
	}
	m.updates = float64(after-before) / time.Since(begun).Seconds()
	var last int64
	sql := m.lane.named(`select count(*), coalesce(max(id), 0) from {outbox} where sent_at is null`)
	if err := m.lane.rig.pool.QueryRow(ctx, sql).Scan(&m.waiting, &last); err != nil {
		return fmt.Errorf("count the tasks that wait: %w", err)
	}
	if m.waiting == 0 {
		return errors.New("no task waits while NATS is away: the figures are worthless")
	}
	if err := nats.start(); err != nil {
		return err
	}
	b.say("NATS is back, %d tasks wait", m.waiting)
	m.phase.Store(outageAfter)
	return m.caughtUp(ctx, last)
}

// caughtUp takes the time until all tasks up to the last one are sent.
func (m *outageRun) caughtUp(ctx context.Context, last int64) error {
	begun := time.Now()
	sql := m.lane.named(`select exists (select from {outbox} where sent_at is null and id <= $1)`)
	for left := true; left; {
		if time.Since(begun) > patience(m.waiting, smallBytes) {
			return fmt.Errorf("%v after NATS came back, tasks from before still wait", time.Since(begun))
		}
		if err := pause(ctx, m.product, look); err != nil {
			return err
		}
		if err := m.lane.rig.pool.QueryRow(ctx, sql, last).Scan(&left); err != nil {
			return fmt.Errorf("look for tasks that wait: %w", err)
		}
	}
	m.catchUp = time.Since(begun)
	return nil
}

// updated is how many rows of the outbox were updated so far, failed transactions included.
func (m *outageRun) updated(ctx context.Context) (n int64, err error) {
	err = m.lane.rig.pool.QueryRow(ctx, `select n_tup_upd from pg_stat_all_tables where relid = $1::text::regclass`, m.lane.table).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read the table's statistics: %w", err)
	}
	return n, nil
}

func (m *outageRun) report(b *bench) {
	rep := b.report
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%g tasks/s on %d connections; NATS away for %v", m.cmd.Rate, compareProducers, m.cmd.Away))
	rep.row("tasks that waited when NATS was back", "tasks", series{float64(m.waiting)})
	rep.row("from then until all of them were sent", "s", series{m.catchUp.Seconds()})
	rep.row("most attempts of a task", "", series{float64(m.attempts)})
	rep.row("rows updated while NATS was away", "/s", series{m.updates})
	rep.key("catch_up_s", m.catchUp.Seconds())
	rep.key("waiting", float64(m.waiting))
	rep.key("attempts_max", float64(m.attempts))
	rep.key("outage_updates_per_s", m.updates)
	for phase, name := range [outagePhases]string{"before", "during", "after"} {
		all := newDurations()
		for worker := range m.commits {
			all.merge(m.commits[worker][phase])
		}
		rep.row("insert and commit, "+name+", p50", "ms", series{all.ms(50)})
		rep.row("insert and commit, "+name+", p99", "ms", series{all.ms(99)})
		rep.key("commit_p50_ms_"+name, all.ms(50))
		rep.key("commit_p99_ms_"+name, all.ms(99))
	}
}
