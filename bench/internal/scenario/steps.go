package scenario

import (
	"sync"
	"time"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// stepTimes times the steps of a dispatcher: the claims that found something, the
// publishing of what they found, and the longest of all claims, which is one of a sweep
// if it has to look at many rows.
type stepTimes struct {
	dispatcher.NopObserver
	mu             sync.Mutex
	claim, publish durations
	longest        time.Duration
}

func newStepTimes() *stepTimes { return &stepTimes{claim: newDurations(), publish: newDurations()} }

// Claimed implements [dispatcher.Observer].
func (s *stepTimes) Claimed(tasks int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, took)
	if tasks > 0 {
		s.claim.add(took)
	}
}

// Settled implements [dispatcher.Observer].
func (s *stepTimes) Settled(_ []dispatcher.Task, _ []dispatcher.Result, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publish.add(took)
}

// next returns what was timed so far, and begins anew.
func (s *stepTimes) next() *stepTimes {
	s.mu.Lock()
	defer s.mu.Unlock()
	so := &stepTimes{claim: s.claim, publish: s.publish, longest: s.longest}
	s.claim, s.publish, s.longest = newDurations(), newDurations(), 0
	return so
}
