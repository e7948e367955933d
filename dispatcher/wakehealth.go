package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// canaryTimeout is how long a notification may take through the channel
// before the wake source counts as broken.
const canaryTimeout = 2 * time.Second

// wakeState knows whether wakes arrive. Each look at the table sends a canary
// through the real channel; a half-open connection, or a pooler that swallows
// notifications, looks like silence otherwise.
type wakeState struct {
	mode WakeMode
	// changed is told of each change, because it changes how often to look.
	changed func(WakeHealth)

	mu       sync.Mutex
	health   WakeHealth
	expected time.Time // when the unanswered canary was sent, or zero
	answered time.Time // when the last one came back
	// subscribed is set once the source runs: only then can a canary arrive.
	subscribed bool
	trigger    bool // the insert trigger was there when last looked at
	restart    context.CancelCauseFunc
}

func newWakeState(mode WakeMode, changed func(WakeHealth)) *wakeState {
	w := &wakeState{mode: mode, changed: changed, trigger: true}
	w.health = WakeHealth{Source: mode, Healthy: mode == WakePoll, Since: time.Now()}
	if mode != WakePoll {
		w.health.Detail = "not tested yet"
	}
	return w
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
	w.restart, w.expected, w.subscribed = restart, time.Time{}, false
}

// listening notes that the source is subscribed.
func (w *wakeState) listening() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribed = true
}

// sent notes that a canary was sent at some time; it may have come back already.
func (w *wakeState) sent(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subscribed && w.expected.IsZero() && w.answered.Before(at) {
		w.expected = at
	}
}

// heard notes that the canary came back.
func (w *wakeState) heard() {
	w.mu.Lock()
	w.expected, w.answered = time.Time{}, time.Now()
	trigger := w.trigger
	w.mu.Unlock()
	if trigger {
		w.set(true, "")
	}
}

// triggerSeen notes whether the insert trigger is installed and enabled.
func (w *wakeState) triggerSeen(ok bool) {
	w.mu.Lock()
	w.trigger = ok
	w.mu.Unlock()
	if !ok {
		w.set(false, "the insert trigger outbox_notify is missing or disabled: run 'dispatcher migrate up'")
	}
}

func (w *wakeState) lost(detail string) { w.set(false, detail) }

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
	err := fmt.Errorf("%w within %v: a transaction pooler between, or a dead connection; give a direct address for listening", errNoCanary, canaryTimeout)
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
	}
	w.health.Healthy, w.health.Detail = healthy, detail
	h := w.health
	w.mu.Unlock()
	w.changed(h)
}
