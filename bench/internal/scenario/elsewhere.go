package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// benchPackage tells where the programs are that are modules of their own: in folders
// of its folder.
const benchPackage = "github.com/outbox-dispatcher/outbox/bench"

// runPeers runs a scenario by the program that has the peers, and returns its exit code.
func runPeers(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := runModule(ctx, "peers", args, stdout, stderr)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitFailure
	}
	return exitOK
}

// runModule builds the program in a folder of the benchmark's, and runs it. The error is an
// [exec.ExitError] if it ended with a code other than 0.
func runModule(ctx context.Context, folder string, args []string, stdout, stderr io.Writer) (err error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", benchPackage).Output()
	if err != nil {
		return fmt.Errorf("find the benchmark's source (run it within the repository): %w", err)
	}
	dir, err := os.MkdirTemp("", "outbox-bench-bin-")
	if err != nil {
		return fmt.Errorf("make a folder for a program: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, folder)
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".") // #nosec G204 -- fixed but for our own folder
	build.Dir = filepath.Join(string(bytes.TrimSpace(root)), folder)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", build.Dir, err, bytes.TrimSpace(out))
	}
	program := exec.CommandContext(ctx, binary, args...) // #nosec G204 -- built above
	program.Stdout, program.Stderr = stdout, stderr
	// It removes what it made, as after Ctrl-C.
	program.Cancel = func() error { return program.Process.Signal(os.Interrupt) }
	return program.Run()
}
