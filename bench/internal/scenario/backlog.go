package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// backlogCmd is "bench backlog".
type backlogCmd struct {
	State  []string      `default:"dead-entries,many-dead-entries,sent,scheduled,dead-letters" enum:"dead-entries,many-dead-entries,sent,scheduled,dead-letters" help:"What the table is full of, beside a fresh one."`
	Rows   int           `placeholder:"N" help:"Rows of each state; dead-entries has a tenth. Default 200000, with --long 1000000, and ten times as many sent rows."`
	Rate   float64       `default:"200" help:"Tasks per second, on 4 connections."`
	Slice  time.Duration `placeholder:"TIME" help:"Length of a slice. Default 1s, with --long 5s."`
	Rounds int           `placeholder:"N" help:"Slices of each state, alternating. Default 3, with --long 7."`
}

// wantBacklog is the project's target for the cost of a claim over that in a fresh table.
const wantBacklog = 1.5

// state is a table that claims have to find their tasks in.
type state struct {
	name, title string
	// part and longPart, the latter with --long, are how many rows are put in it, relative to --rows.
	part, longPart float64
	// sql puts rows into {outbox}, $1 of them.
	sql string
	// held: a snapshot is held from before that, so that no entry of an index is removed.
	held bool
}

const (
	// settledSQL leaves one dead entry per task in the index of the tasks that wait.
	settledSQL = `with new as (insert into {outbox} (kind, payload) select 'bench.old', '{}' from generate_series(1, $1::int) returning id) select count(*) from new`
	settleSQL  = `update {outbox} set sent_at = now(), attempts = 1 where sent_at is null`
)

var states = []state{
	{name: "fresh", title: "a fresh table"},
	{name: "dead-entries", title: "dead entries in the index, a snapshot held", part: 0.1, longPart: 0.1, sql: settledSQL, held: true},
	{name: "many-dead-entries", title: "dead entries in the index, a snapshot held", part: 1, longPart: 1, sql: settledSQL, held: true},
	{name: "sent", title: "sent tasks", part: 1, longPart: 10, sql: `insert into {outbox} (kind, payload, sent_at, attempts) select 'bench.old', '{}', now(), 1 from generate_series(1, $1::int)`},
	{name: "scheduled", title: "tasks for tomorrow", part: 1, longPart: 1, sql: `insert into {outbox} (kind, payload, send_after) select 'bench.old', '{}', now() + interval '1 day' from generate_series(1, $1::int)`},
	{name: "dead-letters", title: "dead letters", part: 1, longPart: 1, sql: `insert into {outbox} (kind, payload, dead_at, attempts, last_error) select 'bench.old', '{}', now(), 30, 'refused' from generate_series(1, $1::int)`},
}

// filled is a table in a state, and what claims cost in it.
type filled struct {
	state
	rows     int
	feed     *feed
	snapshot *pgx.Conn
	steps    *stepTimes
	claim    series // ms, a median per slice
	longest  series // ms, of each slice
}

// Run measures and reports.
func (c *backlogCmd) Run(ctx context.Context, b *bench) (err error) {
	c.Rows = cmp.Or(c.Rows, b.counted(200_000, 1_000_000))
	c.Slice = cmp.Or(c.Slice, time.Duration(b.counted(1, 5))*time.Second)
	c.Rounds = cmp.Or(c.Rounds, b.counted(3, 7))
	if c.Rows < 10 || c.Rate <= 0 || c.Slice < 0 || c.Rounds < 1 {
		return errors.New("--rows must be at least 10, and --rate, --slice and --rounds positive")
	}
	if b.Process {
		return errors.New("backlog times the claims within its own process: leave out --process")
	}
	r, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	var tables []*filled
	defer func() {
		for _, f := range tables {
			deferClose(ctx, &err, f)
		}
	}()
	for _, s := range states {
		if s.sql != "" && !slices.Contains(c.State, s.name) {
			continue
		}
		f, err := c.open(ctx, b, r, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		tables = append(tables, f)
	}
	for round := range c.Rounds {
		b.say("round %d of %d", round+1, c.Rounds)
		for _, i := range inTurn(len(tables), round) {
			if err := tables[i].slice(ctx); err != nil {
				return fmt.Errorf("%s: %w", tables[i].name, err)
			}
		}
	}
	c.report(b, tables)
	return nil
}

// open makes a table and brings it into a state.
func (c *backlogCmd) open(ctx context.Context, b *bench, r *rig, s state) (_ *filled, err error) {
	f := &filled{state: s, steps: newStepTimes()}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close(ctx))
		}
	}()
	l, err := r.newLane(ctx)
	if err != nil {
		return nil, err
	}
	start := func(ctx context.Context) (*product, error) { return runEmbedded(ctx, l, f.steps) }
	if f.feed, err = newFeed(ctx, l, pace{c.Rate, compareProducers}, c.Slice, start); err != nil {
		return nil, err
	}
	if s.held {
		if err := f.hold(ctx, r.dsn); err != nil {
			return nil, err
		}
	}
	if s.sql == "" {
		return f, l.rest(ctx)
	}
	part := s.part
	if b.long {
		part = s.longPart
	}
	f.rows = int(float64(c.Rows) * part)
	b.say("%d rows: %s", f.rows, s.title)
	return f, f.fill(ctx)
}

// hold keeps a snapshot from before the rows.
func (f *filled) hold(ctx context.Context, dsn string) (err error) {
	if f.snapshot, err = pgx.Connect(ctx, dsn); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if _, err = f.snapshot.Exec(ctx, `begin isolation level repeatable read; select from pg_class limit 1`); err != nil {
		return fmt.Errorf("hold a snapshot: %w", err)
	}
	return nil
}

func (f *filled) fill(ctx context.Context) error {
	l := f.feed.lane
	if _, err := l.rig.pool.Exec(ctx, l.named(f.sql), f.rows); err != nil {
		return fmt.Errorf("insert %d rows: %w", f.rows, err)
	}
	if f.held {
		if _, err := l.rig.pool.Exec(ctx, l.named(settleSQL)); err != nil {
			return fmt.Errorf("settle %d rows: %w", f.rows, err)
		}
	}
	return l.rest(ctx)
}

func (f *filled) slice(ctx context.Context) error {
	if err := f.feed.slice(ctx); err != nil {
		return err
	}
	took := f.steps.next()
	f.claim = append(f.claim, took.claim.ms(50))
	f.longest = append(f.longest, inMS(took.longest))
	stored, err := f.feed.lane.stored(ctx)
	if err == nil && stored != f.feed.sent {
		err = fmt.Errorf("the stream has stored %d messages of %d tasks: the figures are worthless", stored, f.feed.sent)
	}
	return err
}

func (f *filled) close(ctx context.Context) (err error) {
	if f.snapshot != nil {
		err = f.snapshot.Close(context.WithoutCancel(ctx))
	}
	if f.feed != nil {
		err = errors.Join(err, f.feed.close(ctx))
	}
	return err
}

func (c *backlogCmd) report(b *bench, tables []*filled) {
	rep := b.report
	rep.setting("product", b.form())
	rep.setting("load", fmt.Sprintf("%g tasks/s on %d connections, slices of %v", c.Rate, compareProducers, c.Slice))
	fresh := tables[0].claim
	worst := 0.0
	cost := bars{Name: "claim, p50"}
	latency := bars{Name: "commit to delivery, p50"}
	var names []string
	for _, f := range tables {
		key, p50 := inKey(f.name), f.feed.percentiles(50, delivery)
		title := f.title
		if f.rows > 0 {
			title = fmt.Sprintf("%d %s", f.rows, f.title)
		}
		rep.row(title+": a claim, p50", "ms", f.claim)
		rep.row("  the longest claim, one in vain included", "ms", f.longest)
		rep.row("  commit to delivery, p50", "ms", p50)
		rep.key("claim_p50_ms_"+key, f.claim.median())
		rep.key("claim_max_ms_"+key, f.longest.median())
		rep.key("p50_ms_"+key, p50.median())
		names = append(names, f.name)
		cost.Values, latency.Values = append(cost.Values, f.claim.median()), append(latency.Values, p50.median())
		if f.rows > 0 {
			ratio := ratios(f.claim, fresh)
			rep.row("  a claim over one in a fresh table, side by side", "", ratio)
			rep.key("backlog_ratio_"+key, ratio.median())
			worst = max(worst, ratio.median())
		}
	}
	rep.chart(chart{Name: "backlog", Title: "Tables full of rows that no claim wants", Y: "ms", Groups: names, Bars: []bars{cost, latency}})
	rep.target("backlog_ratio", worst, worst <= wantBacklog, "at most "+number(wantBacklog))
	rep.key("backlog_ratio", worst)
}
