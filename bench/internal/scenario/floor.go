package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The statements of the floor. They are the least that any dispatcher of this
// design has to do for one task, and on purpose not the product's own.
const (
	floorChannel = "outbox_bench_floor"

	// floorInsertSQL commits a task and a notification that no trigger makes.
	floorInsertSQL = `
with task as (
  insert into {outbox} (kind, payload)
  select $1, ` + payloadSQL + ` from (values ($2::int)) as v(n)
  returning id
)
select id, pg_notify('` + floorChannel + `', '')::text from task`

	floorLimitsSQL = `
select set_config('statement_timeout', '5000', true),
       set_config('idle_in_transaction_session_timeout', '10000', true),
       set_config('synchronous_commit', 'off', true)`

	// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
	floorClaimSQL = `
with due as materialized (
  select id
    from {outbox}
   where sent_at is null and dead_at is null and send_after <= now()
   order by send_after, id
   limit 1
     for update skip locked
)
update {outbox} as o
   set sent_at = now(), attempts = o.attempts + 1
  from due
 where o.id = due.id
returning o.id, o.payload, o.created_at`
)

// floorTimes are the distributions of one slice of floor probes.
type floorTimes struct {
	notify  durations // from the commit's acknowledgement to the notification seen
	claim   durations // from there to the row read
	publish durations // from there to the acknowledgement
	sum     durations // all three
}

func newFloorTimes() *floorTimes {
	return &floorTimes{notify: newDurations(), claim: newDurations(), publish: newDurations(), sum: newDurations()}
}

func (t *floorTimes) add(committed time.Time, s steps) {
	t.notify.add(s.notified.Sub(committed))
	t.claim.add(s.claimed.Sub(s.notified))
	t.publish.add(s.acked.Sub(s.claimed))
	t.sum.add(s.acked.Sub(committed))
}

// floor is the chain of steps that no dispatcher can avoid, with nothing
// between: notification, claim, publish. Each probe runs through it once.
type floor struct {
	lane                        *lane
	listener, producer, claimer *pgx.Conn
	nc                          *nats.Conn
	js                          jetstream.JetStream
	insertStmt, claimStmt       string
	done                        chan steps
	serving                     sync.WaitGroup
	stop                        context.CancelFunc
}

// steps is when each step of a probe ended.
type steps struct {
	id                       int64
	notified, claimed, acked time.Time
	err                      error
}

// newFloorLane makes a lane whose table has the outbox's columns and indexes, but
// neither its trigger nor its checks: what they cost is the product's. The caller
// must close it.
func newFloorLane(ctx context.Context, r *rig) (*lane, error) {
	l, err := r.newLaneOf(ctx, none)
	if err != nil {
		return nil, err
	}
	bare := pgx.Identifier{l.schema, "bare"}.Sanitize()
	if _, err := r.pool.Exec(ctx, l.named(`create table `+bare+` (like {outbox} including all excluding constraints)`)); err != nil {
		return nil, errors.Join(fmt.Errorf("make the floor's table: %w", err), l.close(ctx))
	}
	l.table = bare
	return l, nil
}

// openFloor connects the floor to its lane and starts listening. The caller closes the floor before the product runs, so that the
// product's notifications wake no one else.
func openFloor(ctx context.Context, l *lane) (_ *floor, err error) {
	f := &floor{lane: l, done: make(chan steps), stop: func() {}}
	f.insertStmt, f.claimStmt = l.named(floorInsertSQL), l.named(floorClaimSQL)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close(ctx))
		}
	}()
	for _, conn := range []**pgx.Conn{&f.listener, &f.producer, &f.claimer} {
		if *conn, err = pgx.Connect(ctx, l.rig.dsn); err != nil {
			return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
	}
	if _, err := f.listener.Exec(ctx, "listen "+floorChannel); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if f.nc, err = l.rig.connect("floor"); err != nil {
		return nil, err
	}
	if f.js, err = jetstream.New(f.nc); err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = cancel
	f.serving.Go(func() { f.serve(listening) })
	return f, nil
}

// serve runs the chain for each notification. The goroutine that was woken goes
// on with the claim itself: a hand-over would cost time that the floor must not
// have.
func (f *floor) serve(ctx context.Context) {
	for {
		_, err := f.listener.WaitForNotification(ctx)
		s := steps{notified: time.Now(), err: err}
		if ctx.Err() != nil {
			return
		}
		if s.err == nil {
			s.err = f.work(ctx, &s)
		}
		select {
		case f.done <- s:
		case <-ctx.Done():
			return
		}
	}
}

func (f *floor) work(ctx context.Context, s *steps) error {
	msg, err := f.claim(ctx, s)
	if err != nil {
		return fmt.Errorf("floor: claim: %w", err)
	}
	s.claimed = time.Now()
	if _, err := f.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("floor: publish: %w", err)
	}
	s.acked = time.Now()
	if _, err := f.claimer.Exec(ctx, "commit"); err != nil {
		return fmt.Errorf("floor: commit: %w", err)
	}
	return nil
}

func (f *floor) claim(ctx context.Context, s *steps) (*nats.Msg, error) {
	claimed, err := bareClaim(ctx, f.claimer, f.claimStmt)
	if err != nil {
		return nil, err
	}
	if len(claimed) != 1 {
		return nil, pgx.ErrNoRows
	}
	s.id = claimed[0].ID
	return claimed[0].message(f.lane), nil
}

// bareTask is a claimed task, as far as a floor needs it.
type bareTask struct {
	ID        int64
	Payload   []byte
	CreatedAt time.Time
}

func (t bareTask) message(l *lane) *nats.Msg { return newMessages(l, t.Payload, t.CreatedAt).of(t.ID) }

// bareClaim is one round trip: transaction, limits and claim in one batch. The
// statement returns the columns of bareTask.
func bareClaim(ctx context.Context, conn *pgx.Conn, stmt string) (claimed []bareTask, err error) {
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(floorLimitsSQL)
	batch.Queue(stmt)
	res := conn.SendBatch(ctx, &batch)
	defer func() { err = errors.Join(err, res.Close()) }()
	for range 2 {
		if _, err := res.Exec(); err != nil {
			return nil, err
		}
	}
	rows, err := res.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[bareTask])
}

// probe sends one task through the chain and waits for its end.
func (f *floor) probe(ctx context.Context, n int, times *floorTimes) error {
	var id int64
	var nothing string
	if err := f.producer.QueryRow(ctx, f.insertStmt, kind, n).Scan(&id, &nothing); err != nil {
		return fmt.Errorf("floor: insert: %w", err)
	}
	committed := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s := <-f.done:
		if s.err != nil {
			return s.err
		}
		if s.id != id {
			return fmt.Errorf("floor: claimed task %d instead of %d: something else inserts into %s", s.id, id, f.lane.schema)
		}
		times.add(committed, s)
		return nil
	}
}

func (f *floor) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	f.stop()
	f.serving.Wait()
	if f.nc != nil {
		f.nc.Close()
	}
	var errs []error
	for _, conn := range []*pgx.Conn{f.listener, f.producer, f.claimer} {
		if conn != nil {
			errs = append(errs, conn.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
