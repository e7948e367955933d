//go:build failpoint

package dispatcher

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// failpoint kills the process, as kill -9 would, at the place that
// OUTBOX_FAILPOINT names. "after-claim#2" means the second time that the place
// is passed. Only builds with the tag failpoint have it.
func failpoint(name string) {
	want, nth, counted := strings.Cut(os.Getenv("OUTBOX_FAILPOINT"), "#")
	if want != name {
		return
	}
	if n, err := strconv.ParseInt(nth, 10, 64); counted && err == nil && failpointPassed.Add(1) < n {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// failpointPassed counts how often the named place was passed.
var failpointPassed atomic.Int64
