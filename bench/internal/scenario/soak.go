package scenario

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"
)

// soakCmd is "bench soak".
type soakCmd struct {
	Rate     float64       `default:"500" help:"Tasks per second, on 4 connections."`
	Duration time.Duration `placeholder:"TIME" help:"How long. Default 30s, with --long 10m."`
	Keep     time.Duration `placeholder:"TIME" help:"Age at which sent tasks are deleted. Default a sixth of --duration."`
}

// soakSettings let autovacuum work as often as it would on a table that is much larger.
var soakSettings = map[string]string{
	"shared_buffers": "32MB", "wal_level": "logical",
	"autovacuum_naptime": "1s", "autovacuum_vacuum_cost_delay": "0",
}

const (
	// windows are measured one after the other; the first third is the way into the
	// steady state.
	windows = 12
	// wantGrowth is the most that the last third may have over the second.
	wantGrowth = 1.2
	// deleteEvery is how often sent tasks are deleted.
	deleteEvery = time.Second
)

// soakRun is the state of the scenario.
type soakRun struct {
	cmd          *soakCmd
	feed         *feed
	table, index series // MB, at the end of each window
}

// Run measures and reports.
func (c *soakCmd) Run(ctx context.Context, b *bench) (err error) {
	c.Duration = cmp.Or(c.Duration, time.Duration(b.counted(30, 600))*time.Second)
	c.Keep = cmp.Or(c.Keep, c.Duration/6)
	if c.Rate <= 0 || c.Duration < windows*100*time.Millisecond || c.Keep <= 0 {
		return fmt.Errorf("--rate and --keep must be positive and --duration at least %v, got %g, %v and %v", windows*100*time.Millisecond, c.Rate, c.Keep, c.Duration)
	}
	r, err := b.start(ctx, soakSettings)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	f, err := b.openFeed(ctx, r, masked, pace{c.Rate, compareProducers}, c.Duration/windows, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, f)
	p, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	deleting := embed(ctx, &keeper{f.lane, c.Keep}, nil, nil)
	defer deferClose(ctx, &err, deleting)
	m := &soakRun{cmd: c, feed: f}
	for i := range windows {
		b.say("window %d of %d", i+1, windows)
		if err := m.window(ctx, p); err != nil {
			return err
		}
		if err := deleting.died(); err != nil {
			return err
		}
	}
	if err := f.verify(ctx); err != nil {
		return err
	}
	m.report(b)
	return nil
}

// keeper deletes sent tasks as the README advises: in portions, until none is left.
type keeper struct {
	lane *lane
	keep time.Duration
}

// Run deletes until ctx ends.
func (k *keeper) Run(ctx context.Context) error {
	const portion = 10_000
	sql := k.lane.named(`delete from {outbox} where id in (select id from {outbox} where sent_at < now() - $1::interval limit ` + strconv.Itoa(portion) + `)`)
	for sleep(ctx, deleteEvery) == nil {
		for left := int64(portion); left == portion; {
			tag, err := k.lane.rig.pool.Exec(ctx, sql, k.keep)
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("delete sent tasks: %w", err)
			}
			left = tag.RowsAffected()
		}
	}
	return nil
}

// window measures the latency of some tasks, and what the table takes after them.
func (m *soakRun) window(ctx context.Context, p *product) error {
	times := newTaskTimes()
	if err := m.feed.send(ctx, p, max(1, int(m.cmd.Rate*m.feed.length.Seconds())), times); err != nil {
		return err
	}
	m.feed.slices = append(m.feed.slices, times)
	var table, index int64
	err := m.feed.lane.rig.pool.QueryRow(ctx, `select pg_table_size($1::text::regclass), pg_indexes_size($1::text::regclass)`, m.feed.lane.table).Scan(&table, &index)
	if err != nil {
		return fmt.Errorf("read the table's size: %w", err)
	}
	m.table, m.index = append(m.table, float64(table)/1e6), append(m.index, float64(index)/1e6)
	return nil
}

func (m *soakRun) report(b *bench) {
	rep := b.report
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%g tasks/s on %d connections for %v, sent tasks deleted after %v", m.cmd.Rate, compareProducers, m.cmd.Duration, m.cmd.Keep))
	p50, p99 := m.feed.percentiles(50, delivery), m.feed.percentiles(99, delivery)
	for _, part := range []struct {
		key, growth, title, unit string
		runs                     series
	}{
		{"table_mb", "table_growth", "table", "MB", m.table},
		{"index_mb", "index_growth", "indexes", "MB", m.index},
		{"p50_ms", "latency_growth", "commit to delivery, p50", "ms", p50},
	} {
		const third = windows / 3
		rep.row(part.title, part.unit, part.runs)
		growth := part.runs[2*third:].median() / part.runs[third:2*third].median()
		rep.row("  last third over the second", "", series{growth})
		rep.target(part.growth, growth, growth <= wantGrowth, "at most "+number(wantGrowth))
		rep.key(part.growth, growth)
		rep.key(part.key, part.runs[2*third:].median())
	}
	rep.row("commit to delivery, p99", "ms", p99)
	rep.key("p99_ms", m.feed.all(delivery).ms(99))
	over := func(name string, s series) line {
		l := line{Name: name}
		for i, v := range s {
			l.Points = append(l.Points, [2]float64{m.feed.length.Seconds() * float64(i+1), v})
		}
		return l
	}
	rep.chart(chart{Name: "soak-size", Title: "Size under a steady load", X: "s", Y: "MB", Lines: []line{over("table", m.table), over("indexes", m.index)}})
	rep.chart(chart{Name: "soak-latency", Title: "Commit to delivery under a steady load", X: "s", Y: "ms", Lines: []line{over("p50", p50), over("p99", p99)}})
}
