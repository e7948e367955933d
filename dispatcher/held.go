package dispatcher

import (
	"sync"
	"time"
)

// held keeps something out of claims for a while: tasks that the database
// refuses to mark or to settle, because of a constraint, a trigger or damage
// in the row, and kinds about which the broker is silent while it answers about
// others. Either would otherwise take its whole claim with it, again and
// again. Neither can be noted in the table, so each dispatcher finds out by
// itself, and tries again after a growing time.
type held[K comparable] struct {
	retry backoff

	mu    sync.Mutex
	items map[K]hold
}

type hold struct {
	until time.Time
	times int
}

// maxHeld bounds the list that each claim has to compare with.
const maxHeld = 1000

// add holds back key and returns for how long.
func (h *held[K]) add(key K, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.items == nil {
		h.items = map[K]hold{}
	}
	old, known := h.items[key]
	if known && old.until.After(now) {
		// Seen again by a claim that had begun before.
		return old.until.Sub(now)
	}
	if !known && len(h.items) >= maxHeld {
		for other := range h.items {
			delete(h.items, other)
			break
		}
	}
	wait := h.retry.delay(old.times + 1)
	h.items[key] = hold{until: now.Add(wait), times: old.times + 1}
	return wait
}

// forget lets key take part again.
func (h *held[K]) forget(key K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.items, key)
}

// some reports whether anything is, or was, held back.
func (h *held[K]) some() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.items) > 0
}

// list is what a claim must leave out now. It is never nil, which would be NULL
// to the database, and leave out all.
func (h *held[K]) list(now time.Time) []K {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := []K{}
	for key, t := range h.items {
		if t.until.After(now) {
			keys = append(keys, key)
		}
	}
	return keys
}
