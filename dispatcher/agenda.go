package dispatcher

import "time"

// recheckAfter is how soon after a busy phase the whole table is looked at: a
// transaction that was open for long commits tasks whose send_after is
// older than where a hot pass starts.
const recheckAfter = 100 * time.Millisecond

// rationing: a look at the whole table may take at most one part in so many
// of the time. It can be slow while dead index entries pile up behind an old
// snapshot.
const rationing = 10

// agenda decides when to look at the table, and how. It has no clock of its
// own; all times come from the caller.
type agenda struct {
	hot       bool      // a wake came: look for fresh tasks at once
	owed      time.Time // a look at the whole table is wanted from here on; zero: none
	why       string    // the reason for it, for metrics
	due       time.Time // the earliest scheduled task, zero: none
	sweep     time.Time // the periodic look
	notBefore time.Time // the ration: no look at the whole table before
}

// owe asks for a look at the whole table at time t or soon after.
func (a *agenda) owe(t time.Time, why string) {
	if a.owed.IsZero() || t.Before(a.owed) {
		a.owed, a.why = t, why
	}
}

// wholeAt is when to look at the whole table next, and why.
func (a *agenda) wholeAt() (at time.Time, why string) {
	at, why = a.sweep, "sweep"
	if !a.due.IsZero() && a.due.Before(at) {
		at, why = a.due, "timer"
	}
	if !a.owed.IsZero() && a.owed.Before(at) {
		at, why = a.owed, a.why
	}
	if at.Before(a.notBefore) {
		at = a.notBefore
	}
	return at, why
}

// looked notes a look at the whole table that took so long until its first
// answer; the next sweep comes after interval.
func (a *agenda) looked(now time.Time, cost, interval time.Duration) {
	a.owed, a.why, a.due = time.Time{}, "", time.Time{}
	a.notBefore = now.Add(min(rationing*cost, interval))
	a.sweep = now.Add(interval)
}
