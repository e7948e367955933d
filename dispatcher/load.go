package dispatcher

import "time"

const (
	// beginScore is the surplus of claims that found work over those that did not
	// with which polling begins.
	beginScore = 4
	// scoreGap is how long the dispatcher may sleep in between; later it counts anew.
	scoreGap = 10 * time.Millisecond
	// fullScore bounds the surplus while polling, so that polling ends about 20 ms
	// after the last task.
	fullScore = 16
	// worthwhile is how long a phase of polling must last to have been right.
	worthwhile = 100 * time.Millisecond
	// minTrial is the delay after a phase that was too short; it doubles with each
	// one in a row, up to maxTrial.
	minTrial, maxTrial = 50 * time.Millisecond, time.Second
)

// load decides when to poll: while at least every other claim finds work, for
// then it costs less than the notifications that it saves the writers. The rate
// of the tasks would not do, because notifications themselves keep it low. It has
// no clock of its own; all times come from the caller.
type load struct {
	score   int       // surplus of claims that found work
	last    time.Time // when the last claim ended
	polling bool
	begun   time.Time     // of this phase of polling
	trial   time.Duration // the delay after the last phase that was not worthwhile
	after   time.Time     // no phase before
	// unwoken is set while no wakes arrive: nothing but polling finds out that there
	// is load, so each claim that finds work begins a trial.
	unwoken bool
	// eager, in tests, begins a phase with each claim that finds work.
	eager bool
}

// claimed notes a claim, for which the dispatcher was there at ready and which ended
// now, and reports whether to poll. The time that a claim takes, or waits for a
// worker, is no sleep.
func (l *load) claimed(ready, now time.Time, found int) (poll bool) {
	if !l.polling && ready.Sub(l.last) > scoreGap {
		l.score = 0
	}
	l.last = now
	if found > 0 {
		l.score = min(l.score+1, fullScore)
	} else {
		l.score = max(l.score-1, 0)
	}
	loaded := l.score >= beginScore || l.unwoken && found > 0
	switch {
	case l.polling && l.score == 0:
		l.end(now)
	case !l.polling && (loaded && !now.Before(l.after) || l.eager && found > 0):
		l.polling, l.begun, l.score = true, now, fullScore/2
	}
	return l.polling
}

// proven reports whether the load is more than a suspicion.
func (l *load) proven(now time.Time) bool {
	return !l.unwoken || now.Sub(l.begun) >= worthwhile || l.eager
}

// end ends the phase, if one is.
func (l *load) end(now time.Time) {
	if !l.polling {
		return
	}
	l.polling, l.score = false, 0
	if now.Sub(l.begun) >= worthwhile {
		l.trial, l.after = 0, time.Time{}
		return
	}
	l.trial = min(max(minTrial, 2*l.trial), maxTrial)
	l.after = now.Add(l.trial)
}

// pollPause is the time between two claims while polling. After a claim that found a
// few tasks it is short beside the claim itself, for the next task. With the number of
// tasks it grows fast: where they come by the thousand per second and processor,
// claiming more at once leaves more of it to the writers.
func pollPause(found int) time.Duration {
	const inVain, least, most = 500 * time.Microsecond, 100 * time.Microsecond, 3 * time.Millisecond
	if found == 0 {
		return inVain
	}
	return min(time.Duration(min(found, 1000))*least, most)
}
