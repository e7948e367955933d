package dispatcher

import (
	"errors"
	"time"
)

// pass claims until a claim comes back short, walking forward: each claim
// starts where the last one ended, past the dead index entries that it left. A
// hot pass starts a little before now, a full one at the beginning. It returns
// how many tasks it claimed, and whether it came to the end.
//
// One claim is made at a time, while others are published: two at once step
// over each other's rows, which costs the database more than it gains.
func (l *looker) pass(hot bool) (found int, complete bool) {
	from := place{}
	for {
		ready := time.Now()
		if !l.slot() {
			return found, false
		}
		if open, _ := l.d.circuit.open(); open || l.claiming.Err() != nil {
			<-l.d.slots
			return found, false
		}
		c := l.claim(hot, from, ready)
		if c == nil || len(c.tasks) == 0 {
			<-l.d.slots
			return found, c != nil
		}
		found += len(c.tasks)
		from = c.end
		more := c.more
		// A slot is free, so a worker is.
		l.d.work <- c
		if !more {
			return found, true
		}
	}
}

// slot waits for a free worker; false: claiming has ended. Meanwhile notifications
// are of no use, so a mask that is held stays.
func (l *looker) slot() bool {
	for {
		select {
		case <-l.claiming.Done():
			return false
		case l.d.slots <- struct{}{}:
			return true
		case <-time.After(maskRenew):
			if l.mask.stage == stagePolling {
				l.hold(time.Now())
			}
		}
	}
}

// claim makes one claim of a pass, for which it was there at ready. It returns nil on
// failure.
func (l *looker) claim(hot bool, from place, ready time.Time) *claim {
	a := l.ask(hot, from)
	begun := time.Now()
	c, err := l.d.table.claim(l.inHand, a)
	if err != nil {
		l.claimFailed(err, a)
		return nil
	}
	l.worked()
	l.d.cfg.Observer.Claimed(len(c.tasks), time.Since(begun))
	l.moderate(ready, len(c.tasks))
	if len(c.tasks) > 0 {
		l.d.fit.Store(fitting(c, l.d.cfg.Batch, l.d.cfg.BatchBytes))
		l.d.careful.Add(-min(int64(len(c.tasks)), max(l.d.careful.Load(), 0)))
		failpoint("after-claim")
	}
	return c
}

// claimFailed decides what a failed claim means for the next one.
func (l *looker) claimFailed(err error, a ask) {
	switch {
	case errors.Is(err, errSwollen):
		l.d.fit.Store(int64(max(1, a.tasks/10)))
	case tookTooLong(err):
		l.d.fit.Store(int64(max(1, a.tasks/2)))
	}
	if l.blame(err, a) {
		// The fault is a row's: go on without it at once.
		l.agenda.owe(time.Now(), "recheck")
		return
	}
	l.failed(err)
}

// ask is the next claim of a pass.
func (l *looker) ask(hot bool, from place) ask {
	a := ask{
		hot: hot, from: from,
		tasks: int(l.d.fit.Load()), bytes: int64(l.d.cfg.BatchBytes), fetch: fetchLimit(l.d.cfg.NATS),
	}
	a.large = a.tasks < l.d.cfg.Batch
	if l.d.careful.Load() > 0 {
		a.tasks = 1
	}
	return a
}

// fitting is how many tasks like those of the claim fit into bytes. A claim
// locks as many rows as it may take and keeps what does not fit locked until it
// is settled, so asking for many more than fit would hide them from others.
func fitting(c *claim, batch, bytes int) int64 {
	if c.bytes == 0 {
		return int64(batch)
	}
	return max(1, min(int64(batch), int64(bytes)*int64(len(c.tasks))/c.bytes))
}
