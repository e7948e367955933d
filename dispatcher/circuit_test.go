package dispatcher

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCircuitOpensProbesAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var states []bool
		c := newCircuit(func(h CircuitHealth) { states = append(states, h.Open) })
		if open, at := c.open(); !open || at.After(time.Now()) {
			t.Fatalf("at the start: open %v, probe in %v; want a probe at once", open, time.Until(at))
		}
		c.reset()
		if open, _ := c.open(); open {
			t.Fatal("still open after an answer")
		}
		cause := errors.New("gone")
		c.trip(cause)
		c.trip(errors.New("the same outage, seen by another claim"))
		first := c.probeAt
		if d := time.Until(first); d <= 0 || d > 100*time.Millisecond {
			t.Errorf("first probe in %v, want at most 100ms: claims that fail together are one failure", d)
		}
		// Each failed probe doubles the time to the next, up to the cap.
		var last time.Duration
		for range 12 {
			_, at := c.open()
			time.Sleep(time.Until(at))
			c.trip(cause)
			_, next := c.open()
			last = time.Until(next)
			if last > 5*time.Second {
				t.Fatalf("probe in %v, want at most 5s", last)
			}
		}
		if last < 2500*time.Millisecond {
			t.Errorf("after 12 failed probes the next is in %v, want at least 2.5s", last)
		}
		c.probeNow()
		if _, at := c.open(); at.After(time.Now()) {
			t.Error("no probe at once after the client reconnected")
		}
		c.reset()
		want := []bool{false, true, false}
		if len(states) != len(want) || states[0] != want[0] || states[1] != want[1] || states[2] != want[2] {
			t.Errorf("told of changes %v, want %v", states, want)
		}
	})
}
