package dispatcher

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// wakes are the wake sources of a dispatcher, the preferred one first. The first that
// is healthy is the one in use; while none is, the dispatcher polls. The preferred one
// always runs, the other one stands in for it, see standin.go. While both run, both
// wake: a wake is a hint, and two hints are one look.
type wakes struct {
	notify  *wakeState   // nil unless the mode includes it
	wal     *wakeState   // the same
	all     []*wakeState // those that there are
	changed func(WakeHealth)

	mu     sync.Mutex
	shown  WakeHealth // what was last told
	masked bool
}

func newWakes(mode WakeMode, changed func(WakeHealth)) *wakes {
	w := &wakes{changed: changed}
	if mode == WakeNotify || mode == WakeAuto {
		w.notify = newWakeState(WakeNotify, mode, w.update)
		w.all = append(w.all, w.notify)
	}
	if mode == WakeWAL || mode == WakeAuto {
		w.wal = newWakeState(WakeWAL, mode, w.update)
		w.all = append(w.all, w.wal)
	}
	if mode == WakeAuto {
		w.wal.rest()
	}
	w.shown = w.choose()
	return w
}

// arrive reports whether wakes are known to arrive, from any source.
func (w *wakes) arrive() bool {
	return slices.ContainsFunc(w.all, func(s *wakeState) bool { return s.snapshot().Healthy })
}

// snapshot tells of the source in use.
func (w *wakes) snapshot() WakeHealth {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.choose()
	h.Masked = w.masked
	return h
}

// sources tells of each source by itself.
func (w *wakes) sources() (all []WakeHealth) {
	for _, s := range w.all {
		all = append(all, s.snapshot())
	}
	return all
}

// choose tells of the source in use, and since when it is, given what was last told.
func (w *wakes) choose() WakeHealth {
	if len(w.all) == 1 {
		return w.all[0].snapshot()
	}
	h := WakeHealth{Source: WakePoll, Healthy: len(w.all) == 0, Since: w.shown.Since}
	var details []string
	for _, s := range w.sources() {
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
	if h.Source != w.shown.Source || h.Healthy != w.shown.Healthy {
		h.Since = time.Now()
	}
	return h
}

// update tells of the source in use if that is news, after one of them has changed.
func (w *wakes) update(WakeHealth) {
	w.mu.Lock()
	h := w.choose()
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
	for _, s := range w.all {
		if t := s.overdue(); !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// giveUp marks the sources unhealthy whose canary is overdue.
func (w *wakes) giveUp(now time.Time) {
	for _, s := range w.all {
		s.giveUp(now)
	}
}
