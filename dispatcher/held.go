package dispatcher

import (
	"maps"
	"sync"
	"time"
)

// held keeps tasks out of claims that the database refuses to mark or to
// settle, because of a constraint, a trigger or damage in the row. Each would
// otherwise take its whole claim with it, again and again. They cannot be noted
// in the table, for that would be refused too, so each dispatcher finds out by
// itself, and tries again after a growing time.
type held struct {
	retry backoff

	mu    sync.Mutex
	tasks map[int64]hold
}

type hold struct {
	until time.Time
	times int
}

// maxHeld bounds the list that each claim has to compare with.
const maxHeld = 1000

// add holds a task back and returns for how long.
func (h *held) add(id int64, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tasks == nil {
		h.tasks = map[int64]hold{}
	}
	if len(h.tasks) >= maxHeld {
		maps.DeleteFunc(h.tasks, func(_ int64, t hold) bool { return !t.until.After(now) })
	}
	if _, known := h.tasks[id]; !known && len(h.tasks) >= maxHeld {
		for any := range h.tasks {
			delete(h.tasks, any)
			break
		}
	}
	times := h.tasks[id].times + 1
	wait := h.retry.delay(times)
	h.tasks[id] = hold{until: now.Add(wait), times: times}
	return wait
}

// ids lists the tasks that a claim must leave out now. It is never nil, which
// would be NULL to the database, and leave out all.
func (h *held) ids(now time.Time) []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := []int64{}
	for id, t := range h.tasks {
		if t.until.After(now) {
			ids = append(ids, id)
		}
	}
	return ids
}
