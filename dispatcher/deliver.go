package dispatcher

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// heldBack is about how long a task waits that got no answer while others of its
// claim did: long enough not to be in every claim, well within the stream's
// duplicate window, since it may have been stored.
const heldBack = 2 * time.Second

// deliver publishes a claim and settles it.
func (d *Dispatcher) deliver(ctx context.Context, c *claim) {
	results, took := d.publish(ctx, c)
	answered, cause := tally(results)
	d.noteSilence(c.tasks, results)
	if cause != nil && !errors.Is(cause, errTooLate) && (answered == 0 || !d.cfg.NATS.IsConnected()) {
		d.circuit.trip(cause)
	}
	if cause != nil && answered == 0 {
		// Nobody answered: give the claim back as it was.
		c.release()
		d.explains.note(time.Now())
		d.cfg.Observer.Released(len(c.tasks), cause)
		d.look.notify()
		return
	}
	d.settle(ctx, c, results, took)
}

// deliverProbe does the same for the one task of a probe and reports whether
// the broker answered. A task without an answer is held back rather than
// released, so that the next probe takes another: one bad task must not keep
// the circuit open.
func (d *Dispatcher) deliverProbe(ctx context.Context, c *claim) bool {
	results, took := d.publish(ctx, c)
	answered, cause := tally(results)
	d.noteSilence(c.tasks, results)
	switch {
	case cause != nil:
		d.circuit.trip(cause)
	case answered == 0:
		// It did not get as far as the broker: try another at once.
		d.circuit.probeNow()
	}
	d.settle(ctx, c, results, took)
	return answered > 0
}

// noteSilence holds back kinds about which the broker is silent while it is
// there: their stream may have no leader, no disk space, or acknowledge nothing. The
// next probe takes another kind, so that one stream does not stop all.
func (d *Dispatcher) noteSilence(tasks []Task, results []Result) {
	online, muted := d.cfg.NATS.IsConnected(), d.table.muted.some()
	for i := range results {
		switch r := &results[i]; {
		case r.Outcome == Unavailable:
			if online && silent(r.Err) {
				d.table.muted.add(tasks[i].Kind, r.Acked)
			}
		case muted && !r.local:
			d.table.muted.forget(tasks[i].Kind)
		}
	}
}

func (d *Dispatcher) publish(ctx context.Context, c *claim) ([]Result, time.Duration) {
	begun := time.Now()
	results := d.pub.publish(ctx, c.tasks, c.deadline)
	return results, time.Since(begun)
}

// tally counts the tasks about which the broker itself gave an answer, and
// returns the first cause of silence.
func tally(results []Result) (answered int, cause error) {
	for i := range results {
		switch {
		case results[i].Outcome == Unavailable:
			if cause == nil {
				cause = results[i].Err
			}
		case !results[i].local:
			answered++
		}
	}
	return answered, cause
}

// settle decides what becomes of each task and records it.
func (d *Dispatcher) settle(ctx context.Context, c *claim, results []Result, took time.Duration) {
	var u undo
	stored := 0
	compared := 0
	online := d.cfg.NATS.IsConnected()
	for i := range results {
		t, r := &c.tasks[i], &results[i]
		r.Latency = t.Age + r.Acked.Sub(t.claimed)
		switch r.Outcome {
		case Stored:
			stored++
		case Duplicate:
			stored++
			r.Unexplained = !d.explains.explain(t, r.Acked) && !d.compare(ctx, t, r, &compared)
		case Rejected:
			r.Dead = true
			u.add(t.ID, true, true, -1, r.Err)
		case Refused:
			r.Dead = t.Attempt >= d.cfg.MaxAttempts
			u.add(t.ID, true, r.Dead, d.retry.delay(t.Attempt).Seconds(), r.Err)
		case Unavailable:
			d.explains.note(r.Acked)
			delay := -1.0
			if online {
				delay = (heldBack/2 + rand.N(heldBack)).Seconds()
			}
			u.add(t.ID, false, false, delay, r.Err)
		}
	}
	tasks := c.tasks
	if err := c.settle(ctx, stored, u); err != nil {
		d.settleFailed(ctx, tasks, err)
		return
	}
	d.unsettled.Store(0)
	if len(u.ids) > 0 {
		d.look.notify()
		d.doubt.notify()
	}
	d.report(tasks, results)
	d.cfg.Observer.Settled(tasks, results, took)
}

// compare reports whether the message that the stream kept instead of the task's
// is the task's own. One that is explains the others of its time; one that is
// not, or cannot be read, is not asked about for ever, for the rows are locked.
func (d *Dispatcher) compare(ctx context.Context, t *Task, r *Result, compared *int) bool {
	const most = 2
	if *compared++; *compared > most {
		return false
	}
	same := d.pub.same(ctx, t, r)
	if same {
		d.explains.note(r.Acked)
	}
	return same
}

// report logs what an operator must know of: dead letters, and duplicates that
// nothing explains.
func (d *Dispatcher) report(tasks []Task, results []Result) {
	for i := range results {
		if results[i].Unexplained {
			d.log.Error("the stream has this message id already and nothing explains it: two tasks may share an id and one was dropped; compare the stored message",
				"task", tasks[i].ID, "kind", tasks[i].Kind)
		}
		if r := &results[i]; r.Outcome == Refused && !r.Dead && d.refusals.news(r.Err.Error(), r.Acked) {
			d.log.Warn("tasks are refused and retried", "task", tasks[i].ID, "kind", tasks[i].Kind,
				"attempts", tasks[i].Attempt, "reason", reasonText(r.Err))
		}
		if results[i].Dead {
			d.log.Error("task is a dead letter", "task", tasks[i].ID, "kind", tasks[i].Kind,
				"attempts", tasks[i].Attempt, "reason", reasonText(results[i].Err))
		}
	}
}

// settleFailed handles a claim that was published but could not be recorded. Its
// tasks are due again; the stream drops the copies.
func (d *Dispatcher) settleFailed(ctx context.Context, tasks []Task, err error) {
	d.explains.note(time.Now())
	d.cfg.Observer.Released(len(tasks), err)
	d.log.Warn("a claim could not be settled, its tasks are sent again", "tasks", len(tasks), "error", err)
	if rowFault(err) || errors.Is(err, errDoubt) {
		if len(tasks) == 1 {
			d.holdBack(tasks[0].ID, err)
		} else {
			d.careful.Store(int64(len(tasks)))
		}
	}
	// The worker waits, so that a database that takes claims but not their
	// settlement is not run in circles.
	n := d.unsettled.Add(1)
	sleep(ctx, backoff{min: 5 * time.Millisecond, max: time.Second}.delay(int(n)))
	d.look.notify()
}

// holdBack keeps a task out of the claims for a while that the database does not
// let us mark or settle.
func (d *Dispatcher) holdBack(id int64, cause error) {
	wait := d.table.held.add(id, time.Now())
	d.log.Error("task held back: the database refuses to record it", "task", id, "retry_in", wait, "error", cause)
}

// sparing keeps the log from saying the same thing for every task.
type sparing struct {
	mu   sync.Mutex
	said map[string]time.Time
}

// news reports whether the text was not said within the last minute, and notes
// that it is said now.
func (s *sparing) news(text string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.said[text]) < time.Minute {
		return false
	}
	if s.said == nil || len(s.said) >= 100 {
		s.said = map[string]time.Time{}
	}
	s.said[text] = now
	return true
}

// explanations remembers why a stream may call a message a duplicate: for some
// time after this process began, or after any lost answer, copies are expected.
// Beyond that the stored message is compared with the task: two tasks may share
// a message id, and one of them was dropped.
type explanations struct {
	mu    sync.Mutex
	until time.Time
}

// explainedFor must cover the longest usual duplicate window that a copy can
// lie back: tasks held back and released are resent long before it ends.
const explainedFor = 10 * time.Minute

func (e *explanations) note(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := now.Add(explainedFor); t.After(e.until) {
		e.until = t
	}
}

// explain reports whether a copy of the task is no surprise.
func (e *explanations) explain(t *Task, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.Attempt > 1 || now.Before(e.until)
}
