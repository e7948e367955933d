package loopback_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
)

func TestReservedPortIsNobodyElses(t *testing.T) {
	p := reserve(t)
	// Without SO_REUSEADDR, as an outgoing connection would bind it.
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.ParseIP(loopback.Host), Port: p.Number()},
		Control: func(_, _ string, rc syscall.RawConn) error {
			var failed error
			err := rc.Control(func(fd uintptr) {
				failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
			})
			return errors.Join(err, failed)
		},
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp4", loopback.Host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := d.DialContext(t.Context(), "tcp4", l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("binding the reserved port gave %v and error %v, want %v", c, err, syscall.EADDRINUSE)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := d.DialContext(t.Context(), "tcp4", l.Addr().String())
	if err != nil {
		t.Fatalf("the port was closed but is still taken: %v", err)
	}
	_ = c.Close()
	if err := p.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
}
