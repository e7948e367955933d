package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// commitsCmd is "bench commits".
type commitsCmd struct {
	Writers []int   `default:"1,4,16,64" help:"Numbers of writers, each on a connection of its own."`
	Rounds  int     `placeholder:"N" help:"Rounds with the most writers, and of bulk inserts, alternating between the variants. Default 5, with --long 9; fewer writers take one, with --long 3."`
	Seconds float64 `placeholder:"S" help:"Time that counts of each run. Default 0.5, with --long 5."`
	Bulk    int     `default:"100000" help:"Rows of a bulk insert."`
	// FlushDelay is in the server's hands: commit_delay, for which --dsn must be a superuser's.
	FlushDelay time.Duration `default:"1ms" placeholder:"TIME" help:"With the most writers, measure once more with every flush of the write-ahead log taking so much longer, as on a network disk. 0: do not."`
}

const (
	// The design's targets, at mostWriters.
	mostWriters   = 64
	wantOfNone    = 0.9
	wantWALOfNone = 0.95
	wantOfClassic = 10
	wantNotifies  = 0.02
	wantBulk      = 1.1
	// When no further round is begun without --long: the scenario has to end within
	// 50 s. Between the two come fewer writers, one round each.
	writersBudget = 20 * time.Second
	bulkBudget    = 42 * time.Second
)

// commitVariants are compared; a further way to wake is one more line.
var commitVariants = []variant{none, classic, masked, wal}

// commitRun is what one run showed.
type commitRun struct {
	written
	// sent is the share of the tasks that were sent when the writers stopped.
	sent float64
	// notifies is how many transactions notified, for each task: within the time
	// that counts, and of the whole run.
	notifies, notifiesAll float64
}

// commitRuns are those of one number of writers, by the variant's name.
type commitRuns struct {
	writers int
	delay   time.Duration // of each flush
	runs    map[string][]commitRun
}

// Run measures and reports.
func (c *commitsCmd) Run(ctx context.Context, b *bench) (err error) {
	if err := c.complete(b); err != nil {
		return err
	}
	begun := time.Now()
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	if err := r.decodes(ctx); err != nil {
		return err
	}
	// The most writers matter most, and come first while there is time.
	slices.Sort(c.Writers)
	slices.Reverse(c.Writers)
	var all []commitRuns
	for i, n := range slices.Compact(c.Writers) {
		rounds := c.Rounds
		if i > 0 {
			rounds = min(rounds, b.counted(1, 3))
		}
		delays := []time.Duration{0}
		if i == 0 && c.FlushDelay > 0 {
			delays = append(delays, c.FlushDelay)
		}
		for _, delay := range delays {
			if delay > 0 {
				rounds = min(rounds, b.counted(1, 3))
			}
			runs := commitRuns{writers: n, delay: delay, runs: map[string][]commitRun{}}
			err := b.rounds(ctx, begun.Add(writersBudget), rounds, len(commitVariants), func(ctx context.Context, i int, _ bool) error {
				return c.measure(ctx, b, r, commitVariants[i], &runs)
			})
			if err != nil {
				return err
			}
			all = append(all, runs)
		}
	}
	bulk := map[string]series{}
	err = b.rounds(ctx, begun.Add(bulkBudget), c.Rounds, len(bulkVariants), func(ctx context.Context, i int, last bool) error {
		return c.bulk(ctx, b, r, bulkVariants[i], last, bulk)
	})
	if err != nil {
		return err
	}
	slices.Reverse(all)
	c.report(b, all, bulk)
	return nil
}

// complete checks the flags and fills in defaults.
func (c *commitsCmd) complete(b *bench) error {
	if c.Rounds == 0 {
		c.Rounds = b.counted(5, 9)
	}
	if c.Seconds == 0 {
		c.Seconds = 0.5
		if b.long {
			c.Seconds = 5
		}
	}
	if c.FlushDelay < 0 || c.FlushDelay > 100*time.Millisecond {
		return fmt.Errorf("--flush-delay must be 0 to 100ms, got %v", c.FlushDelay)
	}
	if c.Rounds < 0 || c.Seconds < 0 || c.Bulk < 1 || len(c.Writers) == 0 || slices.Min(c.Writers) < 1 {
		return errors.New("--writers, --rounds, --seconds and --bulk must be positive")
	}
	return nil
}

func (c *commitsCmd) length() time.Duration { return time.Duration(c.Seconds * float64(time.Second)) }

// rounds measures n parts in turn, up to so many rounds, of which the first two are
// always measured; without --long no further one that would not end in time. The last
// one is told so.
func (b *bench) rounds(ctx context.Context, end time.Time, most, n int, measure func(ctx context.Context, part int, last bool) error) error {
	var longest time.Duration
	for round, last := 0, false; !last; round++ {
		started := time.Now()
		last = round+1 == most || !b.long && round > 0 && started.Add(2*longest).After(end)
		for _, part := range inTurn(n, round) {
			if err := measure(ctx, part, last); err != nil {
				return err
			}
		}
		longest = max(longest, time.Since(started))
		if last && round+1 < most {
			b.report.note("%d of %d rounds fitted into the time; --long takes all", round+1, most)
		}
	}
	return nil
}

// drainedLane is a fresh outbox whose dispatcher runs and has sent a first task.
type drainedLane struct {
	lane    *lane
	product *product
}

// openDrained makes one of a variant. The caller must close it.
func (b *bench) openDrained(ctx context.Context, r *rig, v variant) (_ *drainedLane, err error) {
	d := &drainedLane{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close(ctx))
		}
	}()
	if d.lane, err = r.newLaneOf(ctx, v); err != nil {
		return nil, err
	}
	// Inserted before the dispatcher starts, which looks at once: no wait for a poll.
	if err := d.lane.add(ctx); err != nil {
		return nil, err
	}
	if d.product, err = b.runProduct(ctx, d.lane, nil); err != nil {
		return nil, err
	}
	return d, d.lane.drained(ctx, d.product, 1, arrival, nil)
}

func (d *drainedLane) close(ctx context.Context) (err error) {
	if d.product != nil {
		err = d.product.close(ctx)
	}
	if d.lane != nil {
		err = errors.Join(err, d.lane.close(ctx))
	}
	return err
}

// measure lets writers write to a fresh outbox that a dispatcher drains.
func (c *commitsCmd) measure(ctx context.Context, b *bench, r *rig, v variant, into *commitRuns) (err error) {
	b.say("%s, %s", into.title(), v.title)
	d, err := b.openDrained(ctx, r, v)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, d)
	run, err := c.write(ctx, d.lane, d.product, into)
	if err != nil {
		return fmt.Errorf("%s, %s: %w", into.title(), v.title, err)
	}
	// With the classic trigger each notifies, which shows that the count is right.
	if v.name == classic.name && run.notifiesAll != 1 {
		return fmt.Errorf("%s, %s: %g notifications were counted for each commit, want 1: the count is worthless", into.title(), v.title, run.notifiesAll)
	}
	into.runs[v.name] = append(into.runs[v.name], run)
	return nil
}

// write is the run itself; the lane has one task that was sent.
func (c *commitsCmd) write(ctx context.Context, l *lane, p *product, of *commitRuns) (run commitRun, err error) {
	count, err := countNotified(ctx, l)
	if err != nil {
		return run, err
	}
	defer deferClose(ctx, &err, count)
	w, err := openWriters(ctx, l, of.writers, of.delay)
	if err != nil {
		return run, err
	}
	defer deferClose(ctx, &err, w)
	var marks []int64
	run.written, err = w.run(ctx, c.length(), func() { marks = append(marks, count.seen.Load()) })
	if err != nil {
		return run, err
	}
	sent, err := l.stored(ctx)
	if err != nil {
		return run, err
	}
	run.sent = float64(sent-1) / float64(run.commits)
	notified, err := count.total(ctx)
	if err != nil {
		return run, err
	}
	run.notifies = float64(marks[1]-marks[0]) / float64(run.counted)
	run.notifiesAll = float64(notified) / float64(run.commits)
	if err := l.drained(ctx, p, run.commits+1, patience(run.commits, smallBytes), nil); err != nil {
		return run, err
	}
	return run, l.verify(ctx, run.commits+1)
}

// bulkVariants are those of bulk inserts: a statement notifies once at most, so
// that the classic trigger is of no interest.
var bulkVariants = []variant{none, masked}

// bulk inserts many rows with one statement, while a dispatcher waits. Their drain
// costs more time than the insert and shows nothing new, so that it is only that of
// the last round; the others' tasks go away with their lane.
func (c *commitsCmd) bulk(ctx context.Context, b *bench, r *rig, v variant, drain bool, into map[string]series) (err error) {
	b.say("%d rows in one statement, %s", c.Bulk, v.title)
	d, err := b.openDrained(ctx, r, v)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, d)
	l, p := d.lane, d.product
	if err := l.rest(ctx); err != nil {
		return err
	}
	begun := time.Now()
	_, err = r.pool.Exec(ctx, l.named(`insert into {outbox} (kind, payload) select $1, $2::jsonb from generate_series(1, $3)`), kind, payload, c.Bulk)
	if err != nil {
		return fmt.Errorf("insert %d tasks: %w", c.Bulk, err)
	}
	into[v.name] = append(into[v.name], inMS(time.Since(begun)))
	if !drain {
		return nil
	}
	if err := l.drained(ctx, p, c.Bulk+1, patience(c.Bulk, smallBytes), nil); err != nil {
		return err
	}
	return l.verify(ctx, c.Bulk+1)
}
