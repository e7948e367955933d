package dispatcher

import (
	"context"
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

// standIn runs the second wake source while the first one does not wake. The second
// costs the server a walsender and a slot, so it is not there before it is needed.
func (d *Dispatcher) standIn(ctx context.Context, source WakeSource) {
	first, second := d.wake.notify, d.wake.wal
	for {
		if !first.await(ctx, false, standInAfter) {
			return
		}
		second.rise()
		standing, end := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.supervise(standing, second, source)
		}()
		first.await(ctx, true, d.standDown)
		end()
		<-ended
		second.rest()
	}
}
