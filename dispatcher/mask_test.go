package dispatcher

import (
	"slices"
	"strings"
	"testing"
)

// search visits every state that can be reached and returns how many there are,
// how many are at rest, and the shortest way to one of these with a task left behind.
func search(b bug) (states, rests int, trace []string) {
	type origin struct {
		from world
		what string
	}
	start := world{bug: b}
	came := map[world]origin{start: {}}
	for queue := []world{start}; len(queue) > 0; {
		var next []world
		for _, w := range queue {
			if w.atRest() {
				rests++
				if w.leftBehind() {
					for at := w; at != start; at = came[at].from {
						trace = append(trace, came[at].what)
					}
					slices.Reverse(trace)
					return len(came), rests, trace
				}
			}
			for _, m := range w.moves() {
				if _, known := came[m.to]; !known {
					came[m.to] = origin{w, m.what}
					next = append(next, m.to)
				}
			}
		}
		queue = next
	}
	return len(came), rests, nil
}

// The argument in mask.go, for every interleaving of two producers and two
// dispatchers, of which one dies and comes back and one stops.
func TestMaskLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	states, rests, trace := search(correct)
	t.Logf("%d states, %d at rest", states, rests)
	if trace != nil {
		t.Errorf("a task is left behind:\n%s", strings.Join(trace, "\n"))
	}
	if rests == 0 {
		t.Error("no state is at rest: the model is broken")
	}
}

// The search must be able to find a fault: each part of the protocol is needed.
func TestMaskNeedsEachPart(t *testing.T) {
	t.Parallel()
	for _, b := range []bug{noBarrier, upperEnd, checkLate, drawFirst, clearLast, readEarly, noCover, noHandOver, noPatience, noNotification} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			states, _, trace := search(b)
			if trace == nil {
				t.Fatalf("nothing is left behind in %d states", states)
			}
			t.Logf("after %d states:\n%s", states, strings.Join(trace, "\n"))
		})
	}
}
