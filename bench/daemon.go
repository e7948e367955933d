package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// daemonPackage is what "go build" makes the daemon from. The name, unlike a
// path, works in every folder of the module.
const daemonPackage = "github.com/outbox-dispatcher/outbox/cmd/dispatcher"

// stopTimeout is beyond the daemon's own limit for finishing what is in hand.
const stopTimeout = 30 * time.Second

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

// runDaemon starts the daemon on a lane. Further flags can be added.
func (b *bench) runDaemon(ctx context.Context, l *lane, flags ...string) (*product, error) {
	if err := l.rig.build(ctx, b); err != nil {
		return nil, err
	}
	args := append([]string{"run", "--schema", l.schema, "--prefix", l.prefix, "--http", "off", "--log-level", "warn"}, flags...)
	// Not of ctx, which could only kill it: close ends it.
	cmd := exec.Command(l.rig.binary, args...) //nolint:noctx,gosec // our own binary
	cmd.Env = append(plainEnvironment(), "DATABASE_URL="+l.rig.dsn, "NATS_URL="+l.rig.natsURL)
	cmd.SysProcAttr = dieWithParent()
	said := &tail{}
	cmd.Stderr = said

	p := &product{ended: make(chan struct{}), said: said}
	started := make(chan error, 1)
	go func() {
		// The kernel ends the daemon with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = exited(cmd.Wait(), said)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	p.pid = cmd.Process.Pid
	p.end = func() { terminate(cmd.Process, p.ended) }
	return p, nil
}

// terminate asks the process to end, and kills it when it does not.
func terminate(process *os.Process, ended <-chan struct{}) {
	_ = process.Signal(syscall.SIGTERM) // fails only if it has ended
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		_ = process.Kill()
	}
}

func exited(err error, said *tail) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("daemon: %w: %s", err, said)
}

// plainEnvironment is ours without what would change the daemon's settings.
func plainEnvironment() []string {
	var env []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "DATABASE_URL" && !hasAnyPrefix(name, "OUTBOX_", "PG", "NATS_") {
			env = append(env, v)
		}
	}
	return env
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// tail keeps the last of what was written, for an error message.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 4 << 10

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String returns the last of what was written.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
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
