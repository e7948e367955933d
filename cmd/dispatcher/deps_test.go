package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The program must not grow by the servers that its tests run.
func TestProgramLinksNoServer(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("list the dependencies: %v", err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if dep == "testing" || strings.Contains(dep, "nats-server") || strings.HasPrefix(dep, "github.com/outbox-dispatcher/outbox/internal/") {
			t.Errorf("links %s", dep)
		}
	}
}
