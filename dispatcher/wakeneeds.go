package dispatcher

import "fmt"

// remedyFor keeps the other source of WakeAuto in place.
func remedyFor(configured WakeMode) string {
	if configured == WakeNotify {
		return "run 'dispatcher migrate up'"
	}
	return fmt.Sprintf("run 'dispatcher migrate up --wake=%s'", configured)
}

// triggerSeen notes what the insert trigger was like when last looked at, and
// whether the lease that it reads may be set.
func (w *wakeState) triggerSeen(version string, masks bool) {
	problem, remark := "", ""
	switch version {
	case triggerVersion:
		if !masks {
			remark = "this role may not set the sequence outbox_mask, so that producers notify under load, too, which slows them down: grant it select, update on that sequence"
		}
	case "v1":
		remark = "the insert trigger outbox_notify is of an older version and notifies under load, too, which slows down the writers: " + w.remedy
	case "v2":
		remark = "the insert trigger outbox_notify is of an older version, with which each INSERT costs more: " + w.remedy
	case "missing", "disabled":
		problem = "the insert trigger outbox_notify is " + version + ": " + w.remedy
	default:
		problem = "the insert trigger outbox_notify is of a version that this program does not know: use the program that installed it, or " + w.remedy
	}
	w.seen(problem, remark)
}

// publicationSeen notes what the publication was like when last looked at.
func (w *wakeState) publicationSeen(name, state string) {
	problem := ""
	switch state {
	case "there":
	case "missing":
		problem = fmt.Sprintf("there is no publication %q: %s", name, w.remedy)
	default:
		problem = fmt.Sprintf("publication %q publishes no inserts of the outbox: %s", name, w.remedy)
	}
	w.seen(problem, "")
}

// seen notes what is wrong with what the wake needs in the database, and what could
// be better about it.
func (w *wakeState) seen(problem, remark string) {
	w.mu.Lock()
	if problem == "" && w.problem != "" && w.health.Detail == w.problem {
		w.health.Detail = w.idle
	}
	w.problem, w.remark = problem, remark
	h := w.health
	news := problem == "" && h.Healthy && h.Detail != remark
	if news {
		// Here, not by set: it may be lost as soon as it is unlocked.
		w.health.Detail = remark
		h = w.health
	}
	w.mu.Unlock()
	switch {
	case problem != "":
		w.set(false, problem)
	case news:
		w.changed(h)
	}
}

// triggerVersion is the version of trigger.sql that this program comes with.
const triggerVersion = "v3"
