//go:build failpoint

package dispatcher

import (
	"os"
	"syscall"
)

// failpoint kills the process, as kill -9 would, at the place that
// OUTBOX_FAILPOINT names. Only builds with the tag failpoint have it.
func failpoint(name string) {
	if os.Getenv("OUTBOX_FAILPOINT") == name {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
