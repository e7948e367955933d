package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// compareProducers are the connections of latency.
const compareProducers = 4

// connect gives the contest producers, with numbers for their tasks.
func (c *contest) connect(ctx context.Context, n int) (_ *crew, err error) {
	w := &crew{producers: make([]Producer, n)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(ctx))
		}
	}()
	g, connecting := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() (err error) {
			w.producers[i], err = c.Producer(connecting)
			return err
		})
	}
	return w, g.Wait()
}

// crew is the producers of a contest.
type crew struct {
	producers []Producer
	number    atomic.Int64
}

// commit makes a task by one of them.
func (w *crew) commit(ctx context.Context, worker int) (int64, time.Time, error) {
	n := w.number.Add(1)
	committed, err := w.producers[worker].Commit(ctx, NewPayload(n))
	return n, committed, err
}

func (w *crew) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	var errs []error
	for _, p := range w.producers {
		if p != nil {
			errs = append(errs, p.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// measureLatency is one slice at a steady rate.
func (m *comparison) measureLatency(ctx context.Context, b *bench, r *rig, e entrant) (err error) {
	c, err := b.enter(ctx, r, e)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, c)
	w, err := c.connect(ctx, compareProducers)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, w)
	f := &feed{lane: c.lane, start: c.start, pace: pace{m.cmd.Rate, compareProducers}, length: m.cmd.Slice, board: newBoard(), number: numbered, commit: w.commit}
	if err := f.subscribe(r); err != nil {
		return err
	}
	defer f.nc.Close()
	if err := f.slice(ctx); err != nil {
		return err
	}
	if f.board.again > 0 {
		m.notes = append(m.notes, fmt.Sprintf("%s: %d messages were delivered more than once", e.Name, f.board.again))
	}
	m.latency[e.Name] = append(m.latency[e.Name], f.slices...)
	return c.stored(ctx, f.sent)
}

// stored checks that the stream has taken each task once. The rest of the lane's checks is
// for the product's table.
func (c *contest) stored(ctx context.Context, want int) error {
	stored, err := c.lane.stored(ctx)
	if err == nil && stored != want {
		err = fmt.Errorf("the stream has stored %d messages of %d tasks: the figures are worthless", stored, want)
	}
	return err
}

// measureDrain watches how fast a backlog goes, from the start of whatever relays it.
func (m *comparison) measureDrain(ctx context.Context, b *bench, r *rig, e entrant) (err error) {
	c, err := b.enter(ctx, r, e)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, c)
	if err := c.Fill(ctx, m.cmd.Tasks); err != nil {
		return err
	}
	if err := c.lane.restAll(ctx); err != nil {
		return err
	}
	begun := time.Now()
	p, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ended:
			return errors.Join(errors.New("the backlog is not drained"), p.died())
		case <-ctx.Done():
			return ctx.Err()
		}
		stored, err := c.lane.stored(ctx)
		if err != nil {
			return err
		}
		took := time.Since(begun)
		if stored > m.cmd.Tasks {
			return fmt.Errorf("the stream has stored %d messages of %d tasks: the figures are worthless", stored, m.cmd.Tasks)
		}
		if stored == m.cmd.Tasks || took >= m.cmd.Within {
			m.drain[e.Name] = append(m.drain[e.Name], float64(stored)/took.Seconds())
			return nil
		}
	}
}

// restAll is rest for whatever tables are in the schema.
func (l *lane) restAll(ctx context.Context) error {
	rows, err := l.rig.pool.Query(ctx, `select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = $1`, l.schema)
	if err != nil {
		return fmt.Errorf("list the tables: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list the tables: %w", err)
	}
	for _, table := range tables {
		if _, err := l.rig.pool.Exec(ctx, `vacuum analyze `+table); err != nil {
			return fmt.Errorf("vacuum %s: %w", table, err)
		}
	}
	return l.checkpoint(ctx)
}

// measureCommits lets writers commit as fast as they can.
func (m *comparison) measureCommits(ctx context.Context, b *bench, r *rig, e entrant) (err error) {
	c, err := b.enter(ctx, r, e)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, c)
	w, err := c.connect(ctx, m.cmd.Writers)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, w)
	p, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	all := &writers{}
	for i := range w.producers {
		all.commits = append(all.commits, func(ctx context.Context) error {
			_, _, err := w.commit(ctx, i)
			return err
		})
	}
	run := commitRun{}
	run.written, err = all.run(ctx, time.Duration(m.cmd.Seconds*float64(time.Second)), func() {})
	if err != nil {
		return errors.Join(err, p.died())
	}
	sent, err := c.lane.stored(ctx)
	if err != nil {
		return err
	}
	run.sent = float64(sent) / float64(run.commits)
	m.commits[e.Name] = append(m.commits[e.Name], run)
	if e.variant == nil {
		return p.died()
	}
	if err := c.lane.drained(ctx, p, run.commits, patience(run.commits, smallBytes), nil); err != nil {
		return err
	}
	return c.lane.verify(ctx, run.commits)
}
