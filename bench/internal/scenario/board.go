package scenario

import (
	"sync"
	"time"
)

// board matches tasks that were committed with messages that arrived. Either
// may be seen first: the notification of a commit can overtake the answer to
// the producer.
type board struct {
	mu        sync.Mutex
	committed map[int64]stamp
	arrived   map[int64]time.Time
	matched   map[int64]bool
	again     int // messages that arrived once more
	times     *taskTimes
	wait      int
	all       chan struct{}
}

// stamp is when a task was due to be inserted, and when its commit was
// acknowledged.
type stamp struct{ due, committed time.Time }

// taskTimes are the distributions of one slice of product tasks.
type taskTimes struct {
	delivery durations // from the commit's acknowledgement to the arrival
	whole    durations // from the time the insert was due to the arrival
	late     durations // of the producer against its schedule
	commit   durations // of the insert, seen by the producer
}

func newTaskTimes() *taskTimes {
	return &taskTimes{delivery: newDurations(), whole: newDurations(), late: newDurations(), commit: newDurations()}
}

func newBoard() *board {
	return &board{committed: map[int64]stamp{}, arrived: map[int64]time.Time{}, matched: map[int64]bool{}}
}

// expect begins a slice of n tasks. The channel is closed once all of them have
// arrived; after that the slice's times may be read.
func (b *board) expect(n int, times *taskTimes) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times, b.wait, b.all = times, n, make(chan struct{})
	return b.all
}

// missing is how many tasks of the slice have not arrived.
func (b *board) missing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait
}

// inserted notes a task that the producer began to insert at the given time.
func (b *board) inserted(id int64, s stamp, begun time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times.late.add(begun.Sub(s.due))
	b.times.commit.add(s.committed.Sub(begun))
	if at, ok := b.arrived[id]; ok {
		delete(b.arrived, id)
		b.match(id, s, at)
		return
	}
	b.committed[id] = s
}

// delivered notes a message that arrived.
func (b *board) delivered(id int64, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, twice := b.arrived[id]; twice || b.matched[id] {
		b.again++
		return
	}
	if s, ok := b.committed[id]; ok {
		delete(b.committed, id)
		b.match(id, s, at)
		return
	}
	b.arrived[id] = at
}

func (b *board) match(id int64, s stamp, at time.Time) {
	b.matched[id] = true
	b.times.delivery.add(at.Sub(s.committed))
	b.times.whole.add(at.Sub(s.due))
	if b.wait--; b.wait == 0 {
		close(b.all)
	}
}
