package dispatcher

import (
	"context"
	"time"
)

// fresh looks for fresh tasks: after a wake, and again and again while polling.
func (l *looker) fresh() {
	woken := l.agenda.hot
	l.agenda.hot = false
	found, _ := l.pass(true)
	now := time.Now()
	l.pollAt = now.Add(pollPause(found))
	switch {
	case found > 0:
		l.agenda.owe(now.Add(recheckAfter), "recheck")
	case woken:
		// Woken for nothing: the task is older, or scheduled.
		l.agenda.owe(now, "recheck")
	}
}

// freshAt is when to follow a wake: at once, but under load with the pauses of
// polling, which wakes outrun that cannot be masked.
func (l *looker) freshAt() time.Time {
	if l.load.polling {
		return l.pollAt
	}
	return time.Time{}
}

// polls reports whether to claim again and again: the notifications are masked, or there
// are none, and there is load.
func (l *looker) polls() bool {
	return l.mask.stage == stagePolling || l.load.polling && !l.d.wake.arrive()
}

// moderate notes what a claim found. It masks the notifications as long as it is
// worth while to poll, if it may.
func (l *looker) moderate(ready time.Time, found int) {
	now := time.Now()
	l.load.unwoken = !l.d.wake.arrive()
	poll := l.load.claimed(ready, now, found)
	switch {
	case !l.masks:
	case poll && l.load.proven(now):
		l.hold(now)
	case !poll && l.mask.stage == stagePolling:
		l.mask.leave()
	}
}

// hold sets the lease, or renews it when it is time.
func (l *looker) hold(now time.Time) {
	if l.mask.stage == stagePolling && now.Sub(l.heldAt) < maskRenew {
		return
	}
	l.mask.hold()
	l.heldAt = now
	l.d.wake.setMasked(true)
	if err := l.d.table.hold(l.inHand, l.clock.Add(now.Sub(l.clockAt)+maskLease)); err != nil {
		// It may have been set, or may be yet: clear it when it has run out.
		l.stopPolling()
		l.clearAt = now.Add(maskLease)
		l.maskFailed("set the lease", err)
		return
	}
	failpoint("masked")
}

// stopPolling makes clearing the lease the next step, if it may be running.
func (l *looker) stopPolling() {
	l.load.end(time.Now())
	if l.mask.stage == stagePolling {
		l.mask.leave()
	}
}

// maskable notes whether the lease is there and may be set. Both may change: rights
// are granted, schemas migrated.
func (l *looker) maskable(yes bool) {
	switch {
	case yes && !l.masks:
		l.masks = true
		l.cover()
	case !yes && l.masks:
		if l.mask.stage != stageAsleep {
			// The lease cannot be cleared; look when it has run out.
			l.agenda.owe(time.Now().Add(maskLease), "recheck")
		}
		l.masks, l.mask = false, mask{}
		l.load.end(time.Now())
		l.d.wake.setMasked(false)
	}
}

// cover looks for what was inserted while nobody listened, or while a dispatcher
// that is gone held the mask.
func (l *looker) cover() {
	if !l.masks {
		l.agenda.owe(time.Now(), "recheck")
		return
	}
	if l.mask.stage != stagePolling {
		l.mask.leave()
	}
}

// unmask takes the steps back to sleep up to the barrier. It reports whether the
// database can be used.
func (l *looker) unmask() bool {
	now := time.Now()
	if now.Before(l.clearAt) {
		return true
	}
	if l.mask.stage == stageClearing {
		if err := l.d.table.clear(l.inHand); err != nil {
			return l.stillMasked(err)
		}
		l.mask.cleared()
		l.d.wake.setMasked(false)
		failpoint("after-clear")
	}
	if l.mask.stage == stageDrawing {
		x, err := l.d.table.draw(l.inHand)
		if err != nil {
			return l.stillMasked(err)
		}
		l.mask.drew(x)
		failpoint("after-draw")
		l.drawnAt = now
		l.agenda.owe(now, "unmask")
	}
	return true
}

// stillMasked handles a step that failed. If the server refuses it, tasks flow all the
// same: the next look tells whether the lease is there and may be set.
func (l *looker) stillMasked(err error) bool {
	l.clearAt = time.Now().Add(time.Second)
	return l.maskFailed("clear the lease and draw a barrier", err)
}

// maskFailed notes a failed statement on the lease, and reports whether the database
// can be used. A read-only role may claim all the same: a claim says "read write".
func (l *looker) maskFailed(what string, err error) bool {
	if code := sqlState(err); code == "" || code != "25006" && connectionLost(err) {
		l.failed(err)
		return false
	}
	now := time.Now()
	if l.d.refusals.news(what, now) {
		l.d.log.Warn("a step of masking the notifications failed, trying again", "step", what, "error", err)
	}
	l.agenda.owe(now, "recheck")
	return true
}

// saw notes a look at the whole table, and whether the pass over what it saw was
// complete. While older transactions run, another one is wanted: soon at first, then
// at growing intervals, for they may run for hours.
func (l *looker) saw(xmin uint64, complete bool) {
	if complete {
		l.mask.saw(xmin)
	}
	if l.mask.stage == stageWaiting {
		now := time.Now()
		pause := max(time.Millisecond, now.Sub(l.drawnAt)/4)
		l.agenda.owe(now.Add(min(pause, l.interval())), "unmask")
	}
}

// handOver asks the other dispatchers, at the end, to cover what was skipped while
// this one held the mask. If it fails, their sweep finds it.
func (l *looker) handOver(ctx context.Context) {
	if l.mask.stage == stageAsleep {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := l.d.table.clear(ctx)
	l.d.wake.setMasked(false)
	if err == nil {
		err = l.d.table.handOver(ctx, l.d.channel)
	}
	if err != nil {
		l.d.log.Warn("the other dispatchers could not be told to look; their next sweep finds what was skipped", "error", err)
	}
}
