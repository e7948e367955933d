package dispatcher

import (
	"strings"
	"sync"
	"time"
)

// wakes are the wake sources of a dispatcher, the preferred one first. The first that
// is healthy is the one in use; while none is, the dispatcher polls. Nothing is
// switched off for that: a wake is a hint, and two hints are one look.
type wakes struct {
	mode    WakeMode
	notify  *wakeState // nil unless the mode includes it
	wal     *wakeState // the same
	changed func(WakeHealth)

	mu     sync.Mutex
	shown  WakeHealth // what was last told
	masked bool
}

func newWakes(mode WakeMode, changed func(WakeHealth)) *wakes {
	w := &wakes{mode: mode, changed: changed}
	if mode == WakeNotify || mode == WakeAuto {
		w.notify = newWakeState(WakeNotify, w.update)
	}
	if mode == WakeWAL || mode == WakeAuto {
		w.wal = newWakeState(WakeWAL, w.update)
	}
	if mode == WakeAuto {
		w.wal.idle, w.wal.health.Detail = standsBy, standsBy
	}
	w.shown = w.choose(WakeHealth{Since: time.Now()})
	return w
}

// each returns the sources that there are, the preferred one first.
func (w *wakes) each() (all []*wakeState) {
	for _, s := range []*wakeState{w.notify, w.wal} {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// snapshot tells of the source in use.
func (w *wakes) snapshot() WakeHealth {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.choose(w.shown)
	h.Masked = w.masked
	return h
}

// sources tells of each source by itself.
func (w *wakes) sources() (all []WakeHealth) {
	for _, s := range w.each() {
		all = append(all, s.snapshot())
	}
	return all
}

// choose tells of the source in use, and since when it is used, given what was so before.
func (w *wakes) choose(before WakeHealth) WakeHealth {
	all := w.sources()
	if len(all) == 1 {
		return all[0]
	}
	h := WakeHealth{Source: WakePoll, Healthy: len(all) == 0}
	var details []string
	for _, s := range all {
		if s.Healthy {
			h.Source, h.Healthy = s.Source, true
		}
		if s.Detail != "" {
			details = append(details, string(s.Source)+": "+s.Detail)
		}
		if s.Healthy {
			break
		}
	}
	h.Detail = strings.Join(details, "; ")
	h.Since = before.Since
	if h.Source != before.Source || h.Healthy != before.Healthy {
		h.Since = time.Now()
	}
	return h
}

// update tells of the source in use if that is news, after one of them has changed.
func (w *wakes) update(WakeHealth) {
	w.mu.Lock()
	h := w.choose(w.shown)
	news := h.Source != w.shown.Source || h.Healthy != w.shown.Healthy || h.Detail != w.shown.Detail
	w.shown = h
	w.mu.Unlock()
	if news {
		w.changed(h)
	}
}

// setMasked notes whether this dispatcher holds the mask.
func (w *wakes) setMasked(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.masked = on
}

// wantCanaries names the sources for which it is time for a canary: one for each interval.
func (w *wakes) wantCanaries(now time.Time, interval time.Duration) (c canaries) {
	c.notify = w.notify != nil && w.notify.wantsCanary(now, interval)
	c.wal = w.wal != nil && w.wal.wantsCanary(now, interval)
	return c
}

// sent notes which canaries were sent at some time; they may have come back already.
func (w *wakes) sent(c canaries, at time.Time) {
	if c.notify {
		w.notify.sent(at)
	}
	if c.wal {
		w.wal.sent(at)
	}
}

// seen notes what is there of what the sources need.
func (w *wakes) seen(o outlook, publication string) {
	if w.notify != nil {
		w.notify.triggerSeen(o.trigger, o.masks)
	}
	if w.wal != nil {
		w.wal.publicationSeen(publication, o.publication)
	}
}

// overdue is when the next unanswered canary must be given up, or zero.
func (w *wakes) overdue() (at time.Time) {
	for _, s := range w.each() {
		if t := s.overdue(); !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// giveUp marks the sources unhealthy whose canary is overdue.
func (w *wakes) giveUp(now time.Time) {
	for _, s := range w.each() {
		s.giveUp(now)
	}
}
