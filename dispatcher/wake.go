package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// WakeSource tells the dispatcher that there may be work. A wake is a hint:
// a lost one costs latency, never a task.
type WakeSource interface {
	// Run calls wake once when it is subscribed, so that what was inserted
	// while nobody listened is found, and again for each sign of work. It
	// calls wake only once the work is visible to a new snapshot. It returns
	// nil after ctx ended and an error when the source was lost; it leaves
	// no connection behind. It is not called again before it returned.
	Run(ctx context.Context, wake func()) error
}

// signal is a wake-up that remembers at most one call: a thousand wakes
// before the next look are one look.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wakeSignal is a signal that remembers which source was the first to give it.
type wakeSignal chan WakeMode

func (s wakeSignal) notify(from WakeMode) {
	select {
	case s <- from:
	default:
	}
}

// supervise runs a wake source until ctx ends, again and again: a lost
// connection comes back after a jittered backoff that starts over once wakes are
// known to have arrived. Being subscribed is no proof: through a transaction
// pooler that always succeeds.
func (d *Dispatcher) supervise(ctx context.Context, state *wakeState, source WakeSource) {
	retry := backoff{min: 50 * time.Millisecond, max: 5 * time.Second}
	failures := 0
	for ctx.Err() == nil {
		runCtx, cancel := context.WithCancelCause(ctx)
		state.reset(cancel)
		subscribed := false
		err := source.Run(runCtx, func() {
			if !subscribed {
				// What was inserted while nobody listened may be of any
				// age, and a dispatcher that died may have left its mask.
				subscribed = true
				d.log.Log(ctx, again(slog.LevelInfo, failures), "wake source subscribed", "source", state.mode)
				state.listening()
				d.cover.notify()
				return
			}
			d.wakes.notify(state.mode)
		})
		if err == nil {
			err = context.Cause(runCtx)
		}
		cancel(nil)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("wake source ended")
		}
		if state.proved() {
			failures = 0
		}
		state.lost(err.Error())
		level := again(slog.LevelWarn, failures)
		failures++
		wait := retry.delay(failures)
		d.log.Log(ctx, level, "wake source lost", "source", state.mode, "error", err, "retry_in", wait)
		sleep(ctx, wait)
	}
}

// again is the level to log something at that may repeat every few seconds for as
// long as a fault lasts.
func again(level slog.Level, failures int) slog.Level {
	if failures > 0 {
		return slog.LevelDebug
	}
	return level
}

// sleep waits for the time to pass or ctx to end.
func sleep(ctx context.Context, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
