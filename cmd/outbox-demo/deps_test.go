package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The dispatcher is a client: its users shall not carry a NATS server, or any
// of what only tests, demo and bench need, in their program.
func TestDispatcherLinksNoServer(t *testing.T) {
	daemon, demo := dependencies(t, "../dispatcher"), dependencies(t, ".")
	for _, part := range []string{
		"github.com/nats-io/nats-server",
		"outbox/internal/natsserver",
		"outbox/internal/pgserver",
	} {
		if strings.Contains(daemon, part) {
			t.Errorf("cmd/dispatcher depends on %s", part)
		}
		// The demo has it: were the name wrong, this would tell.
		if !strings.Contains(demo, part) {
			t.Errorf("cmd/outbox-demo does not depend on %s: is it called something else now?", part)
		}
	}
	for _, part := range []string{"\ntesting\n", "outbox/internal/pgtest", "outbox/internal/natstest", "outbox/internal/faultproxy"} {
		if strings.Contains(daemon, part) || strings.Contains(demo, part) {
			t.Errorf("a program depends on %s", part)
		}
	}
}

func dependencies(t *testing.T, pkg string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", pkg, err)
	}
	return "\n" + string(out)
}
