package main

import (
	"math/big"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the largest latency that is told exactly.
const longest = 10 * time.Minute

// ledger holds what was committed against what arrived, task by task. Its
// methods may be called from several goroutines.
type ledger struct {
	mu sync.Mutex
	// mine and seen are sets of task ids, a bit each: a demo may run for days.
	mine, seen *big.Int
	// pending are committed and not yet seen, with the time of the commit.
	pending map[int64]time.Time
	// early are seen but not known to be committed, with the time of arrival:
	// the message may overtake the reply to COMMIT, or another program has
	// inserted the task.
	early map[int64]time.Time
	now   tally // since the last take
	total tally

	// arrived has a token after each arrival.
	arrived chan struct{}
}

// tally counts a span of time.
type tally struct {
	inserted, delivered, duplicated, others int64
	latency                                 *hdrhistogram.Histogram // nanoseconds
}

func newTally() tally {
	return tally{latency: hdrhistogram.New(1, longest.Nanoseconds(), 3)}
}

func newLedger() *ledger {
	return &ledger{
		mine: new(big.Int), seen: new(big.Int),
		pending: map[int64]time.Time{}, early: map[int64]time.Time{},
		now: newTally(), total: newTally(),
		arrived: make(chan struct{}, 1),
	}
}

// commit records that COMMIT of a task of ours returned at a time.
func (l *ledger) commit(id int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mine.SetBit(l.mine, int(id), 1)
	l.count(func(t *tally) { t.inserted++ })
	if arrived, ok := l.early[id]; ok {
		delete(l.early, id)
		l.deliver(arrived.Sub(at))
		return
	}
	l.pending[id] = at
}

// maxGap is how far beyond our own ids another's may be: an id taken from a
// message is the length of a set here.
const maxGap = 1 << 24

// arrive records a message of a task.
func (l *ledger) arrive(id int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wake()
	committed, ok := l.pending[id]
	switch {
	case ok:
		delete(l.pending, id)
		l.seen.SetBit(l.seen, int(id), 1)
		l.deliver(at.Sub(committed))
	case id < 0 || id > int64(max(l.mine.BitLen(), l.seen.BitLen()))+maxGap:
		l.count(func(t *tally) { t.others++ })
	case l.seen.Bit(int(id)) == 1:
		l.count(func(t *tally) { t.duplicated++ })
	default:
		l.seen.SetBit(l.seen, int(id), 1)
		l.early[id] = at
	}
}

// stray records a message that names no task.
func (l *ledger) stray() {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wake()
	l.count(func(t *tally) { t.others++ })
}

func (l *ledger) wake() {
	select {
	case l.arrived <- struct{}{}:
	default:
	}
}

// deliver counts a delivery. A message that overtook the reply to COMMIT took
// no time that the producer could see.
func (l *ledger) deliver(took time.Duration) {
	ns := min(max(took, 0), longest).Nanoseconds()
	l.count(func(t *tally) {
		t.delivered++
		_ = t.latency.RecordValue(ns) // within the range by the line above
	})
}

func (l *ledger) count(change func(*tally)) {
	change(&l.now)
	change(&l.total)
}

// take returns what happened since the last take.
func (l *ledger) take() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.now
	l.now = newTally()
	return t
}

// waiting returns how many tasks are committed and have not arrived.
func (l *ledger) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

// verdict is the ledger once all producers have ended and all messages are in.
type verdict struct {
	tally
	lost    int64
	foreign int64 // of tasks that the demo did not insert
}

func (l *ledger) verdict() verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return verdict{tally: l.total, lost: int64(len(l.pending)), foreign: int64(len(l.early)) + l.total.others}
}
