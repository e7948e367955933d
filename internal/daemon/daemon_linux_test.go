package daemon_test

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A parent that was killed leaves no child: the pipe that both hold ends when
// both are gone.
func TestChildDiesWithItsParent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.CommandContext(t.Context(), self(t), "child-parent")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	_ = cmd.Wait()
	if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the parent ended with %v, want a kill", cmd.ProcessState)
	}
	if err := r.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if pid, err := io.ReadAll(r); err != nil {
		t.Errorf("child %s outlived its parent: %v", pid, err)
	}
}
