package loopback_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
)

func reserve(t *testing.T) *loopback.Port {
	t.Helper()
	p, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestOwnerListensAgainAndAgain(t *testing.T) {
	p := reserve(t)
	for round := range 3 {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp4", p.Addr())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp4", p.Addr())
		if err != nil {
			t.Fatalf("round %d: a connection to the listening owner: %v", round, err)
		}
		_ = c.Close()
		if err := l.Close(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := d.DialContext(t.Context(), "tcp4", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("round %d: dialling the reserved port gave %v, want a refusal", round, err)
		}
	}
}
