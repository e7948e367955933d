package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// The publisher that these tests put between loses, delays and forges answers.
type faultyPublisher struct {
	publisher
	spoil func(n int, tasks []Task, results []Result)
	calls int
}

func (f *faultyPublisher) publish(ctx context.Context, tasks []Task, deadline time.Time) []Result {
	results := f.publisher.publish(ctx, tasks, deadline)
	f.calls++
	f.spoil(f.calls, tasks, results)
	return results
}

// startFaulty runs a dispatcher with one worker whose results are spoiled.
func (r *rig) startFaulty(spoil func(n int, tasks []Task, results []Result), change ...func(*Config)) {
	r.t.Helper()
	d := r.make(append(change, func(c *Config) { c.Workers = 1 })...)
	d.wrap = func(p publisher) publisher { return &faultyPublisher{publisher: p, spoil: spoil} }
	r.run(d)
}

// Everything was stored, but no acknowledgement came back: the tasks are sent
// again under the same ids, and the stream keeps one of each.
func TestLostAcksAreNotAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(100)
	r.startFaulty(func(n int, _ []Task, results []Result) {
		if n <= 3 {
			for i := range results {
				results[i] = Result{Outcome: Unavailable, Err: errAckLate}
			}
		}
	})
	r.awaitAll(100)
	if n := see(r.observer, func(w *watcher) int { return w.odd }); n > 0 {
		t.Errorf("%d duplicates are called unexplained after lost answers", n)
	}
}

// A claim of which nothing was answered is given back as it was.
func TestUnansweredClaimIsReleased(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(100)
	r.startFaulty(func(n int, _ []Task, results []Result) {
		if n == 2 { // after the probe
			for i := range results {
				results[i] = Result{Outcome: Unavailable, Err: errAckLate}
			}
		}
	})
	r.awaitAll(100)
	if n := see(r.observer, func(w *watcher) int { return w.released }); n != 99 {
		t.Errorf("%d tasks released, want the 99 of the second claim", n)
	}
	if n := query[int](r, `select count(*) from outbox where last_error is not null`); n > 0 {
		t.Errorf("%d rows were written for an outage", n)
	}
}

// Some answers of a claim are lost: what was answered is settled, the others are
// sent again.
func TestPartlyLostAcks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(100)
	r.startFaulty(func(n int, _ []Task, results []Result) {
		if n == 2 {
			for i := range results {
				if i%3 == 0 {
					results[i] = Result{Outcome: Unavailable, Err: errAckLate}
				}
			}
		}
	})
	r.awaitAll(100)
}

func TestRefusedTasksAreRetriedThenDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into outbox (kind, payload) values ('bad', '{}'), ('good', '{}'), ('shaky', '{}')`)
	r.startFaulty(func(_ int, tasks []Task, results []Result) {
		for i, task := range tasks {
			if task.Kind == "bad" || task.Kind == "shaky" && task.Attempt < 3 {
				results[i] = Result{Outcome: Refused, Err: fmt.Errorf("no, not %s", task.Kind)}
			}
		}
	}, func(c *Config) { c.MaxAttempts = 4 })
	r.awaitSettled()
	for kind, want := range map[string]string{
		"bad":   "4 true no, not bad",
		"good":  "1 false ",
		"shaky": "3 false no, not shaky",
	} {
		got := query[string](r, `select format('%s %s %s', attempts, (dead_at is not null)::text, last_error) from outbox where kind = $1`, kind)
		if got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
	if n := see(r.observer, func(w *watcher) int { return w.dead }); n != 1 {
		t.Errorf("the observer saw %d dead letters, want 1", n)
	}
}

// The head of the queue never gets an answer. Each probe must take another
// task, or the circuit would stay open for ever.
func TestSilentTaskDoesNotKeepTheCircuitOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insert("silent", `{}`)
	r.insertMany(20)
	r.startFaulty(func(_ int, tasks []Task, results []Result) {
		for i, task := range tasks {
			if task.Kind == "silent" {
				results[i] = Result{Outcome: Unavailable, Err: errAckLate}
			}
		}
	})
	eventually(t, "the others are sent", func() error {
		if n := query[int](r, `select count(*) from outbox where sent_at is null and kind <> 'silent'`); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	if got := query[string](r, `select attempts || ' ' || (dead_at is null)::text from outbox where kind = 'silent'`); got != "0 true" {
		t.Errorf("the silent task: %q, want no attempt counted and not dead", got)
	}
}

// A message id that another message has taken: the stream drops the task. A copy
// of the task itself is no surprise, whoever published it.
func TestDuplicatesAreCompared(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		data string
		odd  int
	}{{`{}`, 0}, {`{"another": 1}`, 1}} {
		t.Run(tt.data, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			d := r.make()
			d.wrap = func(p publisher) publisher {
				return &faultyPublisher{publisher: p, spoil: func(int, []Task, []Result) {
					// As if this process had run for long.
					d.explains.mu.Lock()
					d.explains.until = time.Time{}
					d.explains.mu.Unlock()
				}}
			}
			id := r.insert("k", `{}`)
			task := Task{
				ID: id, Kind: "k", Attempt: 1, Body: []byte(tt.data),
				CreatedAt: query[time.Time](r, `select created_at from outbox`),
			}
			msg, err := message("outbox", query[string](r, `select name from outbox_source`), &task)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			r.run(d)
			r.awaitSettled()
			eventually(t, "the observer is told", func() error {
				if see(r.observer, func(w *watcher) int { return w.outcomes[Duplicate] }) != 1 {
					return errors.New("not yet")
				}
				return nil
			})
			if got := see(r.observer, func(w *watcher) int { return w.odd }); got != tt.odd {
				t.Errorf("%d unexplained duplicates, want %d", got, tt.odd)
			}
		})
	}
}

// With a broker that does not answer, a stop ends within the drain timeout.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insertMany(5)
	waiting := make(chan struct{})
	d := r.make(func(c *Config) { c.DrainTimeout = time.Second })
	d.wrap = func(p publisher) publisher { return &stuckPublisher{publisher: p, waiting: waiting} }
	run := r.run(d)
	<-waiting
	run.halt() // fails if Run does not return
	if n := query[int](r, `select count(*) from outbox where sent_at is not null or attempts > 0`); n > 0 {
		t.Errorf("%d tasks count as sent or attempted", n)
	}
}

// stuckPublisher gets no answer until it is told to give up.
type stuckPublisher struct {
	publisher
	waiting chan struct{}
}

func (s *stuckPublisher) publish(ctx context.Context, tasks []Task, _ time.Time) []Result {
	close(s.waiting)
	<-ctx.Done()
	results := make([]Result, len(tasks))
	for i := range results {
		results[i] = Result{Outcome: Unavailable, Err: ctx.Err()}
	}
	return results
}

// A dispatcher that was frozen beyond its deadline must not publish: others have
// sent the tasks meanwhile.
func TestNothingIsPublishedAfterTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.config()
	cfg.NATS = r.connect()
	cfg.Pool = r.pool()
	cfg = cfg.withDefaults()
	js, err := newJetStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := newNATSPublisher(cfg, js, "s", &streams{js: js, prefix: "outbox", denied: newDenials()})
	results := p.publish(t.Context(), []Task{{ID: 1, Kind: "a", CreatedAt: time.Now()}}, time.Now().Add(-time.Millisecond))
	if !errors.Is(results[0].Err, errTooLate) || results[0].Outcome != Unavailable {
		t.Errorf("got %+v", results[0])
	}
	if n := len(r.stored()); n > 0 {
		t.Errorf("%d messages stored", n)
	}
}
