package natstest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/natsserver"
)

// settingsEnv makes a test binary a NATS server; its value is the JSON of the
// server's options.
const settingsEnv = "OUTBOX_NATSTEST_SERVER"

// stopTimeout bounds an orderly end; a server that takes longer is stuck.
const stopTimeout = 60 * time.Second

// What the test tells the server process, one word per line.
const (
	cmdStop     = "stop"
	cmdLameDuck = "lameduck"
)

// ready is what the server process prints once it takes connections; anything
// else is the reason why it does not.
const ready = "ready"

// A server that can be killed has to be a process, and the only program that
// surely exists while a test runs is the test's own. So Listening starts the
// test binary once more, and this init makes that second one a server before
// its TestMain or any test gets a chance to run.
func init() {
	if settings, ok := os.LookupEnv(settingsEnv); ok {
		os.Exit(serve(settings, os.Stdin, os.Stdout))
	}
}

func serve(settings string, stdin io.Reader, stdout io.Writer) int {
	var opts natsserver.Options
	if err := json.Unmarshal([]byte(settings), &opts); err != nil {
		fmt.Fprintf(stdout, "read %s: %v\n", settingsEnv, err)
		return 2
	}
	s, err := natsserver.Start(opts)
	if err != nil {
		fmt.Fprintln(stdout, strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	fmt.Fprintln(stdout, ready)
	for in := bufio.NewScanner(stdin); in.Scan(); {
		switch in.Text() {
		case cmdStop:
			s.Stop()
			return 0
		case cmdLameDuck:
			s.LameDuck()
			return 0
		}
	}
	// The pipe broke, so the test process is gone, however it ended.
	return 3
}

// process is a NATS server in a process of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// exited is closed once the process is gone and err is set.
	exited chan struct{}
	err    error
}

func startProcess(opts natsserver.Options) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the test binary to run as a NATS server: %w", err)
	}
	settings, err := json.Marshal(opts)
	if err != nil {
		return nil, fmt.Errorf("pass the NATS server's settings: %w", err)
	}
	cmd := exec.Command(self) //nolint:noctx,gosec // our own binary, ended by Stop or Kill: a context could only kill it
	cmd.Env = append(os.Environ(), settingsEnv+"="+string(settings))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a NATS server process: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a NATS server process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a NATS server process: %w", err)
	}
	p := &process{cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	said, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if said = strings.TrimSpace(said); said != ready {
		p.kill()
		if said == "" {
			said = fmt.Sprintf("it ended without a word (%v, %v)", p.err, err)
		}
		return nil, fmt.Errorf("start a NATS server process: %s", said)
	}
	return p, nil
}

// kill ends the process at once and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.exited
	_ = p.stdin.Close()
}

func (p *process) stop() error     { return p.tell(cmdStop) }
func (p *process) lameDuck() error { return p.tell(cmdLameDuck) }

// tell gives a command that ends the process, and waits for the end.
func (p *process) tell(command string) error {
	if _, err := fmt.Fprintln(p.stdin, command); err != nil {
		return fmt.Errorf("tell the NATS server process to %s: %w", command, err)
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		p.kill()
		return fmt.Errorf("the NATS server process did not end within %v of %q", stopTimeout, command)
	}
	_ = p.stdin.Close()
	if p.err != nil {
		return fmt.Errorf("the NATS server process after %q: %w", command, p.err)
	}
	return nil
}

func (p *process) freeze() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze the NATS server process: %w", err)
	}
	// The signal is only on its way; the parent hears when every thread halted.
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait until the NATS server process is frozen: %w", err)
		case !status.Stopped():
			return fmt.Errorf("freeze the NATS server process: it ended, status %#x", status)
		default:
			return nil
		}
	}
}

func (p *process) thaw() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("let the NATS server process go on: %w", err)
	}
	return nil
}
