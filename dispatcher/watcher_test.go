package dispatcher

import (
	"sync"
	"time"
)

// watcher is an Observer that remembers.
type watcher struct {
	NopObserver
	mu       sync.Mutex
	wakes    map[string]int
	claims   int
	claimed  int
	released int
	outcomes map[Outcome]int
	dead     int
	odd      int // unexplained duplicates
	latency  []time.Duration
}

func newWatcher() *watcher {
	return &watcher{wakes: map[string]int{}, outcomes: map[Outcome]int{}}
}

func (w *watcher) Woke(source string) { w.mu.Lock(); w.wakes[source]++; w.mu.Unlock() }

func (w *watcher) Claimed(n int, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims++
	w.claimed += n
}

func (w *watcher) Released(n int, _ error) { w.mu.Lock(); w.released += n; w.mu.Unlock() }

func (w *watcher) Settled(_ []Task, results []Result, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range results {
		w.outcomes[r.Outcome]++
		w.latency = append(w.latency, r.Latency)
		if r.Dead {
			w.dead++
		}
		if r.Unexplained {
			w.odd++
		}
	}
}

// see reads the watcher under its lock.
func see[T any](w *watcher, f func(*watcher) T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f(w)
}
