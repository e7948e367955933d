package faults

import (
	"sync"
	"time"
)

// Outcome is what a producer knows of its transaction.
type Outcome int

const (
	// Unknown: COMMIT was sent and no answer came back.
	Unknown Outcome = iota
	// Committed: the server said so.
	Committed
	// RolledBack: the server said so, or COMMIT was never sent.
	RolledBack
)

func (o Outcome) String() string {
	return [...]string{"unknown", "committed", "rolled back"}[o]
}

// Transaction is one try of a producer to enqueue the tasks First to
// First+Count-1, all or none. Tasks have a number that is used once in a run,
// whatever becomes of the transaction: the ids of the table come back after a
// crash.
type Transaction struct {
	First, Count int64
	// Key is the ordering key of its tasks, "" for none.
	Key     string
	Outcome Outcome
	// Volatile: committed without waiting for the disk, so a crash of the
	// database may take it back.
	Volatile     bool
	Begun, Ended time.Time
}

// History is what the producers of a run did. It only ever grows. Its methods
// may be called from several goroutines.
type History struct {
	mu           sync.Mutex
	next         int64
	transactions []Transaction
	crashes      []time.Time
}

// Reserve returns the first of count numbers that nobody has had.
func (h *History) Reserve(count int64) (first int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first = h.next + 1
	h.next += count
	return first
}

// Record adds a transaction that has ended. Every reserved number must be
// recorded once.
func (h *History) Record(t Transaction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.transactions = append(h.transactions, t)
}

// Crashed notes that the database may just have lost what it had not flushed.
func (h *History) Crashed(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crashes = append(h.crashes, at)
}

// Tasks returns how many numbers are given away.
func (h *History) Tasks() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// Evidence returns the history as evidence that lacks what the stream and the
// table hold. Producers must have ended.
func (h *History) Evidence() Evidence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Evidence{Tasks: h.next, Transactions: h.transactions, Crashes: h.crashes}
}
