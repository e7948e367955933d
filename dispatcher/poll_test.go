package dispatcher

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

func TestPollModeNeedsNoTrigger(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`drop trigger outbox_notify on outbox`)
	d := r.start(func(c *Config) { c.Wake, c.PollInterval = WakePoll, 10*time.Millisecond })
	r.insert("a", `{}`)
	r.awaitSettled()
	// The one task was the probe's: the circuit closes just after it is settled.
	eventually(t, "it is ready", func() error {
		if h := d.Health(); !h.Wake.Healthy || !h.Ready() {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	if n := query[int](r, `select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'`); n > 0 {
		t.Errorf("%d listeners", n)
	}
}

// Under load the claims follow one another, though nothing wakes the dispatcher
// and it looks at the whole table but twice a second.
func TestPollModePollsFasterUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(func(c *Config) { c.Wake = WakePoll })
	for range 300 {
		r.insert("a", `{}`)
	}
	r.awaitSettled()
	claims, looks := see(r.observer, func(w *watcher) int { return w.claims }), 0
	for _, n := range see(r.observer, func(w *watcher) map[string]int { return maps.Clone(w.wakes) }) {
		looks += n
	}
	// A look makes at most one claim, since no claim is full here; the shortest phase of
	// polling has eight.
	if claims < looks+8 {
		t.Errorf("%d claims, %d looks at the whole table", claims, looks)
	}
}
