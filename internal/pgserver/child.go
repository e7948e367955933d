package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is a running postgres process.
type child struct {
	process *os.Process
	// exited is closed once the process is gone.
	exited chan struct{}
}

// startChild starts the command, with its output appended to the file at
// logPath. The goroutine that started it stays on its thread until the process
// is gone: the signal of dieWithParent is sent at the end of the thread, not of
// the process.
func startChild(cmd *exec.Cmd, logPath string) (*child, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // #nosec G304 -- in our own folder
	if err != nil {
		return nil, fmt.Errorf("opening the log of PostgreSQL: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)

	c := &child{exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.exited)
		err := cmd.Start()
		c.process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	err = <-started
	if err := errors.Join(err, log.Close()); err != nil {
		return nil, fmt.Errorf("starting postgres: %w", err)
	}
	return c, nil
}

// stop sends the signal and waits until the process is gone. If that takes
// longer than patience the process is killed, which is an error.
func (c *child) stop(sig syscall.Signal, patience time.Duration) error {
	if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to postgres: %w", sig, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.exited:
		return nil
	case <-timer.C:
	}
	_ = c.process.Kill()
	<-c.exited
	return fmt.Errorf("postgres did not end within %v of %v and was killed", patience, sig)
}

// logTail returns the last lines of the log, for an error message.
func logTail(path string) string {
	const size = 2 << 10
	f, err := os.Open(path) // #nosec G304 -- in our own folder
	if err != nil {
		return "no log: " + err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return strings.TrimSpace(string(text))
}
