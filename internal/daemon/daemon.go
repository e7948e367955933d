// Package daemon runs the dispatcher program as a child process, for the demo
// and the benchmarks: what they show and measure is the program that users run.
package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StopTimeout is how long Stop waits. It is beyond the program's own default
// limit for finishing what is in hand.
const StopTimeout = 30 * time.Second

// Options say which program to run and against what.
type Options struct {
	// Binary is the path of the dispatcher program. Required.
	Binary string
	// DSN and NATSURL are the servers. The program gets them as DATABASE_URL
	// and NATS_URL, and none of this process's other variables for it.
	DSN     string
	NATSURL string
	// Output gets what the program writes to its standard error: its log.
	// Default: nobody; the last lines are part of Err all the same.
	Output io.Writer
}

// Daemon is a running program. Its methods may be called from several
// goroutines.
type Daemon struct {
	process *os.Process
	done    chan struct{}
	err     error
}

// Start starts the program with the given arguments, such as "run". It ends
// with this process, however that ends (on Linux; elsewhere a kill of this
// process leaves it behind). A Ctrl-C on the terminal does not reach it.
func Start(o Options, args ...string) (*Daemon, error) {
	cmd := exec.Command(o.Binary, args...) //nolint:noctx,gosec // the program we are told to run, ended by Stop: a context could only kill it
	cmd.Env = append(plain(os.Environ()), "DATABASE_URL="+o.DSN, "NATS_URL="+o.NATSURL)
	said := &tail{}
	cmd.Stderr = said
	if o.Output != nil {
		cmd.Stderr = io.MultiWriter(said, o.Output)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	d := &Daemon{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that started the program for
		// the end of this process, so the thread waits here.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(d.done)
		err := cmd.Start()
		d.process = cmd.Process
		started <- err
		if err == nil {
			d.err = describe(args, cmd.Wait(), said)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the dispatcher: %w", err)
	}
	return d, nil
}

// Run starts the program and returns when it has ended by itself: nil if it
// succeeded.
func Run(o Options, args ...string) error {
	d, err := Start(o, args...)
	if err != nil {
		return err
	}
	<-d.Done()
	return d.Err()
}

// Done is closed once the program has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Err returns, after Done, nil if the program succeeded, else how it ended and
// the last that it wrote.
func (d *Daemon) Err() error {
	<-d.done
	return d.err
}

// PID returns the id of the process.
func (d *Daemon) PID() int { return d.process.Pid }

// Stop asks the program to end, as SIGTERM does, waits for it and returns its
// Err. It kills a program that takes longer than [StopTimeout]. It may be called
// again.
func (d *Daemon) Stop() error {
	if err := d.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the dispatcher: %w", err)
	}
	timer := time.NewTimer(StopTimeout)
	defer timer.Stop()
	select {
	case <-d.done:
		return d.err
	case <-timer.C:
	}
	d.Kill()
	return fmt.Errorf("the dispatcher did not end within %v of SIGTERM and was killed", StopTimeout)
}

// Kill ends the program as kill -9 does, and returns when it is gone.
func (d *Daemon) Kill() {
	_ = d.process.Kill() // fails only if it has ended
	<-d.done
}

func describe(args []string, err error, said *tail) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dispatcher %s: %w: %s", strings.Join(args, " "), err, said)
}

// plain leaves out what would change the program's settings.
func plain(environ []string) []string {
	var env []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		ours := name == "DATABASE_URL"
		for _, prefix := range []string{"OUTBOX_", "PG", "NATS_"} {
			ours = ours || strings.HasPrefix(name, prefix)
		}
		if !ours {
			env = append(env, v)
		}
	}
	return env
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
