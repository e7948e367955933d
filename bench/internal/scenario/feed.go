package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// arrival is how long a slice waits for its last message.
const arrival = 20 * time.Second

// feed inserts tasks into a lane at a steady rate, slice by slice, and sees the
// messages arrive.
type feed struct {
	lane *lane
	// start runs what sends the tasks.
	start     func(context.Context) (*product, error)
	pace      pace
	length    time.Duration // of a slice
	producers []*pgx.Conn
	// commit inserts a task on the connection of a worker. It returns the number by
	// which number knows the task's message, and when the commit was acknowledged.
	commit func(ctx context.Context, worker int) (int64, time.Time, error)
	number func(*nats.Msg) (int64, bool)
	nc     *nats.Conn
	board  *board
	sent   int
	slices []*taskTimes
	// unmasking is how long after the last message of a slice the notifications
	// were masked, in milliseconds.
	unmasking series
}

// openFeed makes a lane of a variant, which the product serves, with what feeds and
// watches it. An observer sees only a dispatcher within this process. The caller must
// close the feed.
func (b *bench) openFeed(ctx context.Context, r *rig, v variant, p pace, length time.Duration, o dispatcher.Observer) (*feed, error) {
	l, err := r.newLaneOf(ctx, v)
	if err != nil {
		return nil, err
	}
	return newFeed(ctx, l, p, length, func(ctx context.Context) (*product, error) { return b.runProduct(ctx, l, o) })
}

// newFeed connects what feeds and watches the lane, which is closed with the feed.
func newFeed(ctx context.Context, l *lane, p pace, length time.Duration, start func(context.Context) (*product, error)) (_ *feed, err error) {
	f := &feed{lane: l, start: start, pace: p, length: length, board: newBoard(), number: taskID}
	f.commit = f.inserts()
	r := l.rig
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close(ctx))
		}
	}()
	for range p.workers {
		conn, err := pgx.Connect(ctx, r.dsn)
		if err != nil {
			return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		f.producers = append(f.producers, conn)
	}
	return f, f.subscribe(r)
}

// subscribe sees the messages, by a plain subscription: what a stream's consumer adds is
// not ours.
func (f *feed) subscribe(r *rig) (err error) {
	if f.nc, err = r.connect("subscriber"); err != nil {
		return err
	}
	_, err = f.nc.Subscribe(f.lane.prefix+".>", func(msg *nats.Msg) {
		at := time.Now()
		// A message without a number is no task's; verify finds out.
		if n, ok := f.number(msg); ok {
			f.board.delivered(n, at)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return f.nc.FlushTimeout(setupTimeout)
}

// taskID is the number of a message of the product.
func taskID(msg *nats.Msg) (int64, bool) {
	id, err := strconv.ParseInt(msg.Header.Get(dispatcher.HeaderTaskID), 10, 64)
	return id, err == nil
}

// inserts returns a function that commits a task in a statement of its own.
func (f *feed) inserts() func(context.Context, int) (int64, time.Time, error) {
	sql := f.lane.named(`insert into {outbox} (kind, payload) select $1, ` + payloadSQL + ` from (values ($2::int)) as v(n) returning id`)
	return func(ctx context.Context, worker int) (id int64, committed time.Time, err error) {
		if err := f.producers[worker].QueryRow(ctx, sql, kind, worker).Scan(&id); err != nil {
			return 0, time.Time{}, fmt.Errorf("insert a task: %w", err)
		}
		return id, time.Now(), nil
	}
}

func (f *feed) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	var errs []error
	if f.nc != nil {
		f.nc.Close()
	}
	for _, conn := range f.producers {
		errs = append(errs, conn.Close(ctx))
	}
	return errors.Join(append(errs, f.lane.close(ctx))...)
}

// slice runs what sends the tasks for a slice. It is stopped afterwards: its listener would
// be woken by the notifications of other lanes too.
func (f *feed) slice(ctx context.Context) (err error) {
	p, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	warmUp, measured := sliceCounts(f.pace.rate, f.length)
	if err := f.send(ctx, p, warmUp, newTaskTimes()); err != nil {
		return err
	}
	times := newTaskTimes()
	f.slices = append(f.slices, times)
	if err := f.send(ctx, p, measured, times); err != nil {
		return err
	}
	if f.lane.wake != dispatcher.WakeNotify || len(f.producers) == 0 {
		return nil
	}
	return f.unmasked(ctx)
}

// unmasked waits until producers notify again.
func (f *feed) unmasked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	for begun := time.Now(); ; {
		var lease int64
		if err := f.producers[0].QueryRow(ctx, f.lane.named(`select last_value from {schema}.outbox_mask`)).Scan(&lease); err != nil {
			return fmt.Errorf("read the lease of the mask: %w", err)
		}
		if lease == 0 {
			f.unmasking = append(f.unmasking, inMS(time.Since(begun)))
			return nil
		}
	}
}

// sliceCounts is how many actions of a rate a slice has, and how many come before
// it unmeasured, while connections, plans and caches get warm.
func sliceCounts(rate float64, length time.Duration) (warmUp, measured int) {
	const warm = 500 * time.Millisecond
	return int(rate*warm.Seconds()) + 20, int(rate*length.Seconds()) + 1
}

// send inserts n tasks, each in a transaction of its own, and waits until all
// have arrived.
func (f *feed) send(ctx context.Context, p *product, n int, times *taskTimes) error {
	arrived := f.board.expect(n, times)
	err := f.pace.run(ctx, n, func(ctx context.Context, worker int, due time.Time) error {
		begun := time.Now()
		n, committed, err := f.commit(ctx, worker)
		if err != nil {
			return err
		}
		f.board.inserted(n, stamp{due: due, committed: committed}, begun)
		return nil
	})
	if err != nil {
		return err
	}
	f.sent += n
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
		return fmt.Errorf("%d of %d tasks have not arrived after %v", f.board.missing(), n, arrival)
	}
}

func (f *feed) verify(ctx context.Context) error { return f.lane.verify(ctx, f.sent) }

// percentiles are those of each slice, in milliseconds.
func (f *feed) percentiles(percentile float64, of func(*taskTimes) durations) (s series) {
	for _, t := range f.slices {
		s = append(s, of(t).ms(percentile))
	}
	return s
}

// all is the distribution of all slices together.
func (f *feed) all(of func(*taskTimes) durations) durations {
	all := newDurations()
	for _, t := range f.slices {
		all.merge(of(t))
	}
	return all
}
