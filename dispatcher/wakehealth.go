package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// canaryTimeout is how long a notification may take through the channel
// before the wake source counts as broken.
const canaryTimeout = 2 * time.Second

// What is told of a source while nothing is known to be wrong with it.
const (
	notTested = "not tested yet"
	standsBy  = "stands by"
)

// wakeState knows whether wakes arrive. With looks at the table, one per interval, a
// canary goes through the real channel; a pooler that swallows notifications looks like
// silence otherwise. The source itself finds a connection that leads nowhere.
type wakeState struct {
	mode WakeMode
	// remedy is what brings back what the wake needs in the database.
	remedy string
	// changed is told of each change, because it changes how often to look.
	changed func(WakeHealth)

	mu       sync.Mutex
	health   WakeHealth
	expected time.Time // when the unanswered canary was sent, or zero
	asked    time.Time // when the last one was sent
	answered time.Time // when the last one came back
	// subscribed is set once the source runs: only then can a canary arrive.
	subscribed bool
	arrived    bool   // a canary came back in this run of the source
	waiting    bool   // it was told why the source is not subscribed yet
	problem    string // what is wrong with the insert trigger, or the publication
	remark     string // what could be better about it
	idle       string // the detail while nothing is known to be wrong and no canary came back
	restart    context.CancelCauseFunc
	turned     chan struct{} // closed when the source turns healthy, or no longer is
}

// newWakeState has in configured what the dispatcher was asked to wake by.
func newWakeState(mode, configured WakeMode, changed func(WakeHealth)) *wakeState {
	return &wakeState{
		mode: mode, remedy: remedyFor(configured), changed: changed, turned: make(chan struct{}), idle: notTested,
		health: WakeHealth{Source: mode, Detail: notTested, Since: time.Now()},
	}
}

func (w *wakeState) snapshot() WakeHealth {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

// reset begins a new run of the source; restart ends that run.
func (w *wakeState) reset(restart context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restart, w.expected, w.asked, w.subscribed, w.arrived, w.waiting = restart, time.Time{}, time.Time{}, false, false, false
}

// rest notes that the source does not run because it is not needed.
func (w *wakeState) rest() {
	w.reset(nil)
	w.idles(standsBy)
}

// rise ends that.
func (w *wakeState) rise() { w.idles(notTested) }

func (w *wakeState) idles(idle string) {
	w.mu.Lock()
	w.idle = idle
	detail, was := cmp.Or(w.problem, idle), w.health.Healthy
	if !was {
		w.health.Detail = detail // which is no news
	}
	w.mu.Unlock()
	if was {
		w.set(false, detail)
	}
}

// await waits until the source has been healthy, or unhealthy, for some time without
// a break. It returns false when ctx has ended before.
func (w *wakeState) await(ctx context.Context, healthy bool, span time.Duration) bool {
	begun := time.Now()
	for ctx.Err() == nil {
		w.mu.Lock()
		h, turned := w.health, w.turned
		w.mu.Unlock()
		var over <-chan time.Time
		if h.Healthy == healthy {
			since := h.Since
			if since.Before(begun) {
				since = begun
			}
			wait := time.Until(since.Add(span))
			if wait <= 0 {
				return true
			}
			over = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-turned:
		case <-over:
		}
	}
	return false
}

// proved reports whether wakes arrived in this run of the source.
func (w *wakeState) proved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arrived
}

// listening notes that the source is subscribed.
func (w *wakeState) listening() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribed = true
}

// wantsCanary reports whether it is time for a canary: one for each interval.
func (w *wakeState) wantsCanary(now time.Time, interval time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.subscribed && (w.asked.IsZero() || now.Sub(w.asked) >= interval)
}

// refused notes that the server did not take the canary: the next one comes in its turn.
func (w *wakeState) refused(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = at
}

// sent notes that a canary was sent at some time; it may have come back already.
func (w *wakeState) sent(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = at
	if w.subscribed && w.expected.IsZero() && w.answered.Before(at) {
		w.expected = at
	}
}

// heard notes that the canary came back.
func (w *wakeState) heard() {
	w.mu.Lock()
	w.expected, w.answered, w.arrived = time.Time{}, time.Now(), true
	problem, remark := w.problem, w.remark
	w.mu.Unlock()
	if problem == "" {
		w.set(true, remark)
	}
}

func (w *wakeState) lost(detail string) { w.set(false, detail) }

// waits notes why the source is not subscribed yet. It is told again and again, with
// other figures, of which the first are enough for the log.
func (w *wakeState) waits(detail string) {
	w.mu.Lock()
	again := w.waiting
	w.waiting = true
	if again && !w.health.Healthy {
		w.health.Detail = detail
	}
	w.mu.Unlock()
	if !again {
		w.set(false, detail)
	}
}

// overdue is when an unanswered canary must be given up, or zero.
func (w *wakeState) overdue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.expected.IsZero() {
		return time.Time{}
	}
	return w.expected.Add(canaryTimeout)
}

// giveUp marks the source unhealthy when its canary is overdue, and has it
// connect anew.
func (w *wakeState) giveUp(now time.Time) {
	w.mu.Lock()
	if w.expected.IsZero() || now.Sub(w.expected) < canaryTimeout {
		w.mu.Unlock()
		return
	}
	w.expected = time.Time{}
	restart := w.restart
	w.mu.Unlock()
	if w.mode == WakeWAL {
		// To connect anew would take longer than to wait, and if the connection is
		// dead the source finds out by itself.
		w.set(false, fmt.Sprintf("%v within %v: the server is behind with decoding its log, perhaps a large transaction", errNoCanary, canaryTimeout))
		return
	}
	err := fmt.Errorf("%w within %v: a transaction pooler between, or a dead connection; give a direct address for listening (--listen-url)", errNoCanary, canaryTimeout)
	w.set(false, err.Error())
	if restart != nil {
		restart(err)
	}
}

var errNoCanary = errors.New("a test notification did not arrive")

func (w *wakeState) set(healthy bool, detail string) {
	w.mu.Lock()
	if w.health.Healthy == healthy && w.health.Detail == detail {
		w.mu.Unlock()
		return
	}
	if w.health.Healthy != healthy {
		w.health.Since = time.Now()
		close(w.turned)
		w.turned = make(chan struct{})
	}
	w.health.Healthy, w.health.Detail = healthy, detail
	h := w.health
	w.mu.Unlock()
	w.changed(h)
}
