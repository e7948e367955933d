package faults

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
)

// node is a dispatcher that is started again whenever it was killed, with its
// own way to the database and the broker.
type node struct {
	w        *world
	binary   string
	env      []string
	pg, nats *faultproxy.Proxy
	log      string
	d        *daemon
}

func (n *node) start() {
	f, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.w.t.Error(err)
		return
	}
	defer f.Close()
	d := &daemon{t: n.w.t, done: make(chan struct{}), log: n.log}
	d.cmd = exec.Command(n.binary, "run", "--http=") //nolint:noctx // ended by signal or by the cleanup
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = n.env, f, f
	if err := d.cmd.Start(); err != nil {
		n.w.t.Error(err)
		return
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	n.d = d
}

// send sends a signal to the process, which may have ended.
func (n *node) send(s syscall.Signal) {
	if err := n.d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.w.t.Error(err)
	}
}

// end kills the process and, after a failure, shows its last words.
func (n *node) end() {
	if n.d == nil {
		return
	}
	_ = n.d.cmd.Process.Kill()
	<-n.d.done
	if n.w.t.Failed() {
		n.w.t.Logf("end of a dispatcher's log:\n%s", tail(n.log, 8<<10))
	}
}

func tail(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// terminate stops a dispatcher as an operator does: it must end by itself, with
// success, whatever the servers and the network do.
func (n *node) terminate() {
	n.send(syscall.SIGTERM)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-n.d.done:
		if code := n.d.cmd.ProcessState.ExitCode(); code != 0 {
			n.w.t.Errorf("a dispatcher ended with %d after SIGTERM", code)
		}
	case <-timer.C:
		n.w.t.Errorf("a dispatcher did not end within %v of SIGTERM", patience)
		n.send(syscall.SIGKILL)
		<-n.d.done
	}
}

// survey starts dispatchers that ended by themselves, which none may.
func (w *world) survey() {
	for i, n := range w.nodes {
		select {
		case <-n.d.done:
			w.t.Errorf("dispatcher %d ended by itself: %v\n%s", i, n.d.cmd.ProcessState, tail(n.log, 2<<10))
			n.start()
		default:
		}
	}
}
