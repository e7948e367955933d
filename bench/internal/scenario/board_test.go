package scenario

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"
)

// at is a time that many milliseconds after a fixed one.
func at(ms int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > want/500 {
		t.Errorf("%s is %v ms, want %v", what, got, want)
	}
}

func TestBoardMatchesInEitherOrder(t *testing.T) {
	t.Parallel()
	b, times := newBoard(), newTaskTimes()
	all := b.expect(2, times)

	b.inserted(1, stamp{due: at(0), committed: at(5)}, at(2))
	b.delivered(1, at(15))
	// The message of the second overtakes the answer to its producer.
	b.delivered(2, at(31))
	b.inserted(2, stamp{due: at(10), committed: at(30)}, at(20))
	// Sent again by a dispatcher that crashed, or before its answer came.
	b.delivered(1, at(99))

	select {
	case <-all:
	default:
		t.Fatalf("%d tasks are missing, want none", b.missing())
	}
	near(t, "shortest delivery", times.delivery.ms(1), 1)
	near(t, "longest delivery", times.delivery.ms(100), 10)
	// From when the insert was due: a late producer hides nothing.
	near(t, "shortest time since due", times.whole.ms(1), 15)
	near(t, "longest time since due", times.whole.ms(100), 21)
	near(t, "longest delay of the producer", times.late.ms(100), 10)
	near(t, "longest commit", times.commit.ms(100), 10)
	if b.again != 1 {
		t.Errorf("%d messages came again, want 1", b.again)
	}
}

func TestBoardWaitsForAll(t *testing.T) {
	t.Parallel()
	b := newBoard()
	all := b.expect(2, newTaskTimes())
	b.inserted(1, stamp{due: at(0), committed: at(1)}, at(0))
	b.delivered(1, at(2))
	b.delivered(1, at(3))
	b.inserted(2, stamp{due: at(0), committed: at(1)}, at(0))
	select {
	case <-all:
		t.Error("done before the second message")
	default:
	}
	if got := b.missing(); got != 1 {
		t.Errorf("%d tasks are missing, want 1", got)
	}
}

func TestPaceDoesNotSlowDownWithItsActions(t *testing.T) {
	t.Parallel()
	const n, rate = 20, 10_000
	var mu sync.Mutex
	var due []time.Time
	all := make(chan struct{})
	// No action ends before all have begun, yet each has its place in time.
	err := pace{rate: rate, workers: n}.run(t.Context(), n, func(_ context.Context, _ int, at time.Time) error {
		mu.Lock()
		due = append(due, at)
		if len(due) == n {
			close(all)
		}
		mu.Unlock()
		<-all
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(due, time.Time.Compare)
	for i := range due {
		if got, want := due[i].Sub(due[0]), time.Duration(i)*time.Second/rate; got != want {
			t.Errorf("action %d is due after %v, want %v", i, got, want)
		}
	}
}

func TestPaceMakesUpForLateActions(t *testing.T) {
	t.Parallel()
	const n, rate = 5, 1000
	var due, begun []time.Time
	err := pace{rate: rate, workers: 1}.run(t.Context(), n, func(_ context.Context, _ int, at time.Time) error {
		due, begun = append(due, at), append(begun, time.Now())
		if len(due) == 1 {
			// Take the time of all the others.
			timer := time.NewTimer(n * time.Second / rate)
			<-timer.C
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range due {
		if got, want := due[i].Sub(due[0]), time.Duration(i)*time.Second/rate; got != want {
			t.Errorf("action %d is due after %v, want %v: its latency would hide the delay", i, got, want)
		}
		if begun[i].Before(due[i]) {
			t.Errorf("action %d began %v early", i, due[i].Sub(begun[i]))
		}
	}
}
