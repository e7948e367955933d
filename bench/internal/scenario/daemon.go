package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/procfs"

	"github.com/outbox-dispatcher/outbox/internal/daemon"
)

// daemonPackage is what "go build" makes the daemon from. The name, unlike a
// path, works in every folder of the module.
const daemonPackage = "github.com/outbox-dispatcher/outbox/cmd/dispatcher"

// build makes the daemon, once for a rig.
func (r *rig) build(ctx context.Context, b *bench) error {
	if r.binary != "" {
		return nil
	}
	b.say("building the daemon")
	dir, err := os.MkdirTemp("", "outbox-bench-bin-")
	if err != nil {
		return fmt.Errorf("make a folder for the daemon: %w", err)
	}
	r.later(func() error { return os.RemoveAll(dir) })
	binary := filepath.Join(dir, "dispatcher")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, daemonPackage).CombinedOutput() // #nosec G204 -- fixed but for our own folder
	if err != nil {
		return fmt.Errorf("build the daemon: %w: %s", err, bytes.TrimSpace(out))
	}
	r.binary = binary
	return nil
}

// runDaemon starts the daemon on a lane.
func (b *bench) runDaemon(ctx context.Context, l *lane) (*product, error) {
	if err := l.rig.build(ctx, b); err != nil {
		return nil, err
	}
	d, err := daemon.Start(daemon.Options{Binary: l.rig.binary, DSN: l.rig.dsn, NATSURL: l.rig.natsURL},
		"run", "--schema", l.schema, "--prefix", l.prefix, "--wake", string(l.wake), "--http", "off", "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	return &product{
		ended: d.Done(), cause: d.Err, pid: d.PID(),
		end: func() { _ = d.Stop() }, // killed or not, its cause tells
	}, nil
}

// usage is what a process has used so far.
type usage struct {
	cpu time.Duration
	// peak is the largest resident memory so far, in bytes.
	peak uint64
}

// errNoProc: only Linux tells.
var errNoProc = errors.New("this scenario reads /proc: run it on Linux")

// usageOf asks the system about a process.
func usageOf(pid int) (usage, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		if runtime.GOOS != "linux" {
			return usage{}, errNoProc
		}
		return usage{}, fmt.Errorf("read the daemon's /proc entry: %w", err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return usage{}, fmt.Errorf("read the daemon's CPU time: %w", err)
	}
	status, err := proc.NewStatus()
	if err != nil {
		return usage{}, fmt.Errorf("read the daemon's memory: %w", err)
	}
	return usage{cpu: time.Duration(stat.CPUTime() * float64(time.Second)), peak: status.VmHWM}, nil
}
