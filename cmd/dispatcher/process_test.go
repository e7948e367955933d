package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds waits that end as soon as what they wait for happens.
const patience = 60 * time.Second

var buildFlags []string

// program is the path of the built program.
var program = sync.OnceValues(func() (string, error) {
	file := filepath.Join(programDir, "dispatcher")
	args := append([]string{"build", "-o", file}, buildFlags...)
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return file, nil
})

// programDir is made and removed by TestMain.
var programDir string

// process is the program, running.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}

	mu     sync.Mutex
	output strings.Builder
	more   chan struct{} // closed at each new line
}

// start runs the program with only the given environment.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatalf("build the program: %v", err)
	}
	p := &process{exited: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(file, args...) //nolint:noctx // ended by signal or by the cleanup
	p.cmd.Env = append([]string{"HOME=" + t.TempDir()}, env...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start the program: %v", err)
	}
	_ = w.Close()
	go func() {
		p.read(r)
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("output of %v:\n%s", args, p.text())
		}
	})
	return p
}

func (p *process) read(r io.ReadCloser) {
	defer r.Close()
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadString('\n')
		p.mu.Lock()
		p.output.WriteString(line)
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// await waits until the program has written text, and returns its line.
func (p *process) await(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(patience)
	for {
		p.mu.Lock()
		have, more := p.output.String(), p.more
		p.mu.Unlock()
		for line := range strings.Lines(have) {
			if strings.Contains(line, text) {
				return line
			}
		}
		select {
		case <-more:
		case <-p.exited:
			if !strings.Contains(p.text(), text) {
				t.Fatalf("the program ended without writing %q", text)
			}
		case <-limit:
			t.Fatalf("the program has not written %q", text)
		}
	}
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal the program: %v", err)
	}
}

// wait returns the exit code, or minus the number of the signal that ended it.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatal("the program does not end")
	}
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return -int(s.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop asks for a graceful end and expects one.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("after SIGTERM the exit code is %d", code)
	}
}

// httpAddr is where it serves health, started with --http=127.0.0.1:0.
func (p *process) httpAddr(t *testing.T) string {
	t.Helper()
	_, addr, ok := strings.Cut(strings.TrimSpace(p.await(t, "serving health and metrics")), "addr=")
	if !ok {
		t.Fatal("no address is logged")
	}
	return addr
}
