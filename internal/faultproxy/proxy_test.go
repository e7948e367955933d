package faultproxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
)

func TestPassesAllBytesAndTheOrderlyEnd(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	for name, p := range map[string]*faultproxy.Proxy{
		"tcp":  start(t, echo),
		"unix": startTo(t, startServer(t, "unix", socket, echo)),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, p)
			want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB: many reads, full buffers
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = c.Write(want)
				_ = c.(*net.TCPConn).CloseWrite()
			})
			got, err := io.ReadAll(c)
			wg.Wait()
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d of %d bytes came back, error %v", len(got), len(want), err)
			}
		})
	}
}

// shortDir is a folder whose path leaves room for a socket's name, which the
// test's own folder may not.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestStallKeepsConnectionsOpenAndSilent(t *testing.T) {
	p := start(t, echo)
	old := dial(t, p)
	send(t, old, "a")
	expect(t, old, "a")
	p.Stall()
	fresh := dial(t, p)
	send(t, old, "b")
	send(t, fresh, "c")
	expectSilence(t, old)
	expectSilence(t, fresh)
	p.Resume()
	expect(t, old, "b")
	expect(t, fresh, "c")
}

func TestStallOfOneDirection(t *testing.T) {
	seen := make(chan string, 1)
	p := start(t, func(c net.Conn) {
		got, _ := receive(c, 1)
		seen <- got
		_, _ = io.WriteString(c, "answer")
		_, _ = receive(c, 1) // until the client leaves
	})
	p.Stall(faultproxy.ToClient)
	c := dial(t, p)
	send(t, c, "q")
	if got := <-seen; got != "q" {
		t.Fatalf("the server received %q, want the question", got)
	}
	expectSilence(t, c)
	p.Resume()
	expect(t, c, "answer")
}

func TestStallHidesTheEnd(t *testing.T) {
	left := make(chan struct{})
	p := start(t, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		close(left)
	})
	c := dial(t, p)
	p.Stall()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
		t.Fatal("the server heard of the client's end through a stalled proxy")
	case <-time.After(quiet):
	}
	p.Resume()
	<-left
}

func TestCutResetsBothSides(t *testing.T) {
	ends := make(chan error, 1)
	p := start(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
		_, err := receive(c, 1)
		ends <- err
	})
	c := dial(t, p)
	expect(t, c, "hello")
	if p.Open() != 1 || p.Accepted() != 1 {
		t.Errorf("%d open, %d accepted, want 1 and 1", p.Open(), p.Accepted())
	}
	p.Cut()
	expectReset(t, c)
	if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server saw %v, want a reset", err)
	}
	if p.Open() != 0 {
		t.Errorf("%d open after Cut", p.Open())
	}
	expect(t, dial(t, p), "hello") // a cut is not a refusal
}

func TestRefuseAndAllow(t *testing.T) {
	p := start(t, echo)
	old := dial(t, p)
	send(t, old, "a")
	expect(t, old, "a")
	for range 3 {
		p.Refuse()
		var d net.Dialer
		if c, err := d.DialContext(t.Context(), "tcp4", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dialling gave %v and error %v, want a refusal", c, err)
		}
		send(t, old, "b")
		expect(t, old, "b")
		if err := p.Allow(); err != nil {
			t.Fatal(err)
		}
		c := dial(t, p)
		send(t, c, "c")
		expect(t, c, "c")
	}
}

func TestServerThatIsAway(t *testing.T) {
	p := startTo(t, filepath.Join(shortDir(t), "nobody"))
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp4", p.Addr())
	if errors.Is(err, syscall.ECONNRESET) {
		return // the reset was faster than the dialler
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	expectReset(t, c)
}

func TestDelayHoldsEachDirectionButNotTheThroughput(t *testing.T) {
	p := start(t, echo)
	c := dial(t, p)
	const delay = 40 * time.Millisecond
	p.Delay(delay)
	began := time.Now()
	send(t, c, "x")
	expect(t, c, "x")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("the first answer took %v, want at least %v", took, 2*delay)
	}
	// 4 MiB are at least 128 reads in each direction. Were the delay paid for
	// each of them, it would take more than 5 s.
	began = time.Now()
	text := strings.Repeat("0123456789abcdef", 4<<16)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.WriteString(c, text) })
	got, err := receive(c, len(text))
	wg.Wait()
	if err != nil || got != text {
		t.Fatalf("%d of %d bytes came back, error %v", len(got), len(text), err)
	}
	if took := time.Since(began); took > 100*delay {
		t.Errorf("%d bytes took %v: the delay adds up", len(text), took)
	}
	p.Delay(0)
	send(t, c, "y")
	expect(t, c, "y")
}

func TestCloseEndsEverything(t *testing.T) {
	p := start(t, echo)
	c := dial(t, p)
	send(t, c, "a")
	expect(t, c, "a")
	p.Stall()
	send(t, c, "b")
	p.Before(faultproxy.ToServer, []byte("x"), func(c *faultproxy.Conn) { <-c.Done() })
	p.Close()
	p.Close()
	expectReset(t, c)
	if err := p.Allow(); err == nil {
		t.Error("a closed proxy accepts connections again")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var d net.Dialer
	if c, err := d.DialContext(ctx, "tcp4", p.Addr()); err == nil {
		_ = c.Close()
		t.Error("a closed proxy takes connections")
	}
}

func TestNewRefusesBadUpstream(t *testing.T) {
	for _, bad := range []string{"", "localhost", "relative/socket"} {
		if p, err := faultproxy.New(bad); err == nil {
			p.Close()
			t.Errorf("New(%q) succeeded", bad)
		}
	}
}
