package dispatcher

import (
	"context"
	"sync"
	"time"
)

const (
	// standInAfter is how long the preferred wake source may be unhealthy before the
	// other one begins to stand in for it: a lost connection is back sooner.
	standInAfter = time.Second
	// standDownAfter is how long it must be healthy again before the other one ends.
	// Until then both wake.
	standDownAfter = 15 * time.Second
)

// follow runs the wake sources until ctx ends.
func (d *Dispatcher) follow(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if w := d.wake.notify; w != nil {
		all.Go(func() {
			d.supervise(ctx, w, &Listen{
				Config: d.cfg.Listen, Channel: d.channel,
				Canary: d.canary, OnCanary: w.heard, OnCover: d.cover.notify,
			})
		})
	}
	w := d.wake.wal
	if w == nil {
		return
	}
	source := &Replication{
		Config: d.cfg.Listen, Publication: d.channel,
		Canary: d.canary, OnCanary: w.heard, OnWaiting: w.waits,
	}
	all.Go(func() {
		if d.cfg.Wake == WakeAuto {
			d.standIn(ctx, source)
		} else {
			d.supervise(ctx, w, source)
		}
	})
}

// standIn runs the second wake source while the first one does not wake. The second
// costs the server a walsender and a slot, so it is not there before it is needed.
func (d *Dispatcher) standIn(ctx context.Context, source WakeSource) {
	first, second := d.wake.notify, d.wake.wal
	for first.await(ctx, false, standInAfter) {
		second.rise()
		standing, end := context.WithCancel(ctx)
		var run sync.WaitGroup
		run.Go(func() { d.supervise(standing, second, source) })
		recovered := first.await(ctx, true, d.standDown)
		end()
		run.Wait()
		if recovered {
			second.rest()
		}
	}
}
