package faultproxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet is how long a direction must bring nothing to count as silent. It only
// ever makes a test miss a fault, never fail without one.
const quiet = 50 * time.Millisecond

// patience bounds every wait for something that must come.
const patience = 30 * time.Second

// startServer runs a server that hands each connection to handle, and returns
// its address.
func startServer(t *testing.T, network, addr string, handle func(net.Conn)) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// start puts a proxy before a server. Its end comes before the server's.
func start(t *testing.T, handle func(net.Conn)) *faultproxy.Proxy {
	t.Helper()
	return startTo(t, startServer(t, "tcp4", "127.0.0.1:0", handle))
}

func startTo(t *testing.T, upstream string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp4", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("send %q: %v", text, err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if got, err := receive(c, len(want)); err != nil || got != want {
		t.Fatalf("received %q and error %v, want %q", got, err, want)
	}
}

func receive(c net.Conn, n int) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, n)
	got, err := io.ReadFull(c, buf)
	return string(buf[:got]), err
}

func expectSilence(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(quiet))
	buf := make([]byte, 1)
	if n, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("want silence on an open connection, received %q and error %v", buf[:n], err)
	}
}

func expectReset(t *testing.T, c net.Conn) {
	t.Helper()
	if got, err := receive(c, 1); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("received %q and error %v, want a reset", got, err)
	}
}
