package faultproxy_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
)

func TestCutAfterCountsExactly(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10} {
		p := start(t, echo)
		p.CutAfter(faultproxy.ToClient, int64(n))
		c := dial(t, p)
		send(t, c, "0123456789")
		expect(t, c, "0123456789"[:n])
		expectReset(t, c)
		again := dial(t, p)
		send(t, again, "0123456789")
		expect(t, again, "0123456789") // once only
	}
}

func TestCutAfterToServer(t *testing.T) {
	seen := make(chan string, 1)
	p := start(t, func(c net.Conn) {
		got, _ := receive(c, 10)
		seen <- got
	})
	p.CutAfter(faultproxy.ToServer, 4)
	send(t, dial(t, p), "0123456789")
	if got := <-seen; got != "0123" {
		t.Errorf("the server received %q, want the first four bytes", got)
	}
}

func TestBeforeStandsRightBeforeThePattern(t *testing.T) {
	p := start(t, echo)
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	remove := p.Before(faultproxy.ToClient, []byte("COMMIT"), func(c *faultproxy.Conn) {
		once.Do(func() {
			close(reached)
			select {
			case <-release:
			case <-c.Done():
			}
		})
	})
	c := dial(t, p)
	send(t, c, "before COMMIT after")
	<-reached
	expect(t, c, "before ")
	expectSilence(t, c)
	close(release)
	expect(t, c, "COMMIT after")
	remove()
}

// A pattern that comes in pieces is found once, before its last byte.
func TestBeforeFindsAPatternInPieces(t *testing.T) {
	p := start(t, echo)
	calls := make(chan struct{}, 100)
	// A longer pattern makes the proxy remember more than it may find again.
	p.Before(faultproxy.ToServer, []byte("never in it"), func(*faultproxy.Conn) { t.Error("found what is not there") })
	p.Before(faultproxy.ToServer, []byte("abab"), func(*faultproxy.Conn) { calls <- struct{}{} })
	c := dial(t, p)
	for piece := range strings.SplitSeq("x a b a b a b y abab z", " ") {
		send(t, c, piece)
		expect(t, c, piece) // so that each piece is a read of its own
	}
	// "ababab" holds the pattern twice, overlapping; "abab" once more.
	if got, want := len(calls), 3; got != want {
		t.Errorf("called %d times, want %d", got, want)
	}
}

func TestBeforeCutsAndStalls(t *testing.T) {
	t.Run("cut", func(t *testing.T) {
		p := start(t, echo)
		p.Before(faultproxy.ToClient, []byte("C"), (*faultproxy.Conn).Cut)
		c := dial(t, p)
		send(t, c, "abC")
		expect(t, c, "ab")
		expectReset(t, c)
	})
	t.Run("stall", func(t *testing.T) {
		p := start(t, echo)
		p.Before(faultproxy.ToClient, []byte("C"), func(*faultproxy.Conn) { p.Stall() })
		c := dial(t, p)
		send(t, c, "abC")
		expect(t, c, "ab")
		expectSilence(t, c)
	})
}

func TestSeveralWatchesInStreamOrder(t *testing.T) {
	p := start(t, echo)
	var order strings.Builder
	for _, pattern := range []string{"two", "one", "three"} {
		p.Before(faultproxy.ToServer, []byte(pattern), func(*faultproxy.Conn) { order.WriteString(pattern + " ") })
	}
	c := dial(t, p)
	send(t, c, "one two three one")
	expect(t, c, "one two three one")
	if got, want := order.String(), "one two three one "; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}
