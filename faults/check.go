package faults

import (
	"fmt"
	"slices"
	"time"
)

// Class is a kind of broken promise.
type Class string

// The classes.
const (
	Lost             Class = "lost"                        // committed, not stored
	Phantom          Class = "phantom"                     // stored, not committed
	DuplicateInside  Class = "duplicate inside the window" // the stream should have dropped it: the ids differ
	DuplicateOutside Class = "duplicate outside the window"
	WrongContent     Class = "wrong content"
	WrongOrder       Class = "wrong order"   // within one ordering key
	Leftover         Class = "leftover"      // neither sent nor dead at the end
	DeadLetter       Class = "dead letter"   // nothing was wrong with the task
	SpentAttempt     Class = "spent attempt" // counted without an answer of the broker
	Torn             Class = "torn"          // a transaction of which a part is there
	Disagreement     Class = "disagreement"  // the evidence contradicts itself
	Late             Class = "late"
)

// Message is one message that the stream holds.
type Message struct {
	N      int64 // of the task
	TaskID int64
	Time   time.Time // when it was stored
	Sum    uint64    // of the content
}

// Row is one row of the table at the end.
type Row struct {
	N        int64
	ID       int64
	Attempts int
	Sent     bool
	Dead     bool
}

// Evidence is all that a verdict rests on. Nothing in it comes from the
// dispatcher's own counters.
type Evidence struct {
	// Tasks: the numbers 1 to Tasks were given away.
	Tasks        int64
	Transactions []Transaction
	Crashes      []time.Time
	Stored       []Message // in the order of the stream
	Rows         []Row
	// Sum returns the checksum that the content of task n must have.
	Sum func(n int64) uint64
	// Window is the stream's duplicate window.
	Window time.Duration
	// Doomed, if set, tells which tasks the broker refuses for ever: they must
	// end as dead letters.
	Doomed func(n int64) bool
	// Refusals: the broker refused tasks now and then, so attempts were spent.
	Refusals bool
	// Bound is how long a task may take from commit to stream; 0: any time.
	Bound time.Duration
}

// Finding is one broken promise.
type Finding struct {
	Class Class
	N     int64
	Text  string
}

func (f Finding) String() string { return fmt.Sprintf("%s: task %d: %s", f.Class, f.N, f.Text) }

// Verdict is what Check found.
type Verdict struct {
	// Counts has an entry for each class that occurred, Findings the first
	// few of each.
	Counts   map[Class]int
	Findings []Finding

	Committed, Unknown, RolledBack int64 // tasks by the outcome of their transaction
	Vanished                       int64 // tasks that a crash took back
	Stored                         int64
	// Latency from the producer's commit to the stream, of the half, 99 % and
	// all of the tasks that were stored once and known to be committed.
	P50, P99, Max time.Duration
}

// shown is how many findings of a class are kept.
const shown = 5

func (v *Verdict) add(c Class, n int64, format string, args ...any) {
	if v.Counts[c]++; v.Counts[c] <= shown {
		v.Findings = append(v.Findings, Finding{Class: c, N: n, Text: fmt.Sprintf(format, args...)})
	}
}

// flushed is how long after an asynchronous commit a crash can take it back:
// three times PostgreSQL's wal_writer_delay of 200 ms, and what a slow machine
// adds.
const flushed = 10 * time.Second

// vanishable reports whether a crash of the database may have taken t back.
func (e *Evidence) vanishable(t *Transaction) bool {
	return t.Volatile && slices.ContainsFunc(e.Crashes, func(c time.Time) bool {
		return c.After(t.Begun) && c.Before(t.Ended.Add(flushed))
	})
}

func (e *Evidence) doomed(n int64) bool { return e.Doomed != nil && e.Doomed(n) }

// Check compares what was committed with what the stream and the table hold.
func Check(e Evidence) Verdict {
	v := Verdict{Counts: map[Class]int{}}
	// By number: 0 is "none", otherwise the index plus one.
	owner, stored, row := make([]int32, e.Tasks+1), make([]int32, e.Tasks+1), make([]int32, e.Tasks+1)
	e.assign(&v, owner)
	e.checkMessages(&v, owner, stored)
	e.checkRows(&v, owner, row)
	var latencies []time.Duration
	for i := range e.Transactions {
		t := &e.Transactions[i]
		rows := 0
		for n := t.First; n < t.First+t.Count; n++ {
			var m *Message
			var r *Row
			if stored[n] > 0 {
				m = &e.Stored[stored[n]-1]
			}
			if row[n] > 0 {
				r = &e.Rows[row[n]-1]
				rows++
			}
			e.checkTask(&v, t, n, m, r)
			if m != nil && t.Outcome == Committed {
				latency := m.Time.Sub(t.Ended)
				latencies = append(latencies, latency)
				if e.Bound > 0 && latency > e.Bound {
					v.add(Late, n, "stored %v after the commit, the bound is %v", latency, e.Bound)
				}
			}
		}
		if rows > 0 && int64(rows) < t.Count {
			v.add(Torn, t.First, "%d of %d tasks of a transaction (%s) are in the table", rows, t.Count, t.Outcome)
		}
	}
	e.checkOrder(&v, owner)
	v.Stored = int64(len(e.Stored))
	if len(latencies) > 0 {
		slices.Sort(latencies)
		v.P50, v.P99, v.Max = latencies[len(latencies)/2], latencies[len(latencies)*99/100], latencies[len(latencies)-1]
	}
	return v
}

// assign notes the transaction of each number.
func (e *Evidence) assign(v *Verdict, owner []int32) {
	for i, t := range e.Transactions {
		for n := t.First; n < t.First+t.Count; n++ {
			if n < 1 || n > e.Tasks || owner[n] > 0 {
				v.add(Disagreement, n, "the history has this number twice, or never gave it away")
				continue
			}
			owner[n] = int32(i + 1)
		}
		switch t.Outcome {
		case Committed:
			v.Committed += t.Count
		case RolledBack:
			v.RolledBack += t.Count
		case Unknown:
			v.Unknown += t.Count
		}
	}
	for n := int64(1); n <= e.Tasks; n++ {
		if owner[n] == 0 {
			v.add(Disagreement, n, "the history does not say what became of its transaction")
		}
	}
}

// checkMessages looks at each message by itself, and for copies.
func (e *Evidence) checkMessages(v *Verdict, owner, stored []int32) {
	for i := range e.Stored {
		m := &e.Stored[i]
		if m.N < 1 || m.N > e.Tasks || owner[m.N] == 0 {
			v.add(Phantom, m.N, "message %d of the dump is of a task that nobody enqueued", i+1)
			continue
		}
		if m.Sum != e.Sum(m.N) {
			v.add(WrongContent, m.N, "checksum %x instead of %x", m.Sum, e.Sum(m.N))
		}
		if first := stored[m.N]; first > 0 {
			apart, class := m.Time.Sub(e.Stored[first-1].Time), DuplicateInside
			if apart > e.Window {
				class = DuplicateOutside
			}
			v.add(class, m.N, "stored again %v after the first time", apart)
			continue
		}
		stored[m.N] = int32(i + 1)
	}
}

// checkRows looks at each row by itself.
func (e *Evidence) checkRows(v *Verdict, owner, row []int32) {
	for i := range e.Rows {
		r := &e.Rows[i]
		switch {
		case r.N < 1 || r.N > e.Tasks || owner[r.N] == 0:
			v.add(Disagreement, r.N, "row %d is of a task that nobody enqueued", r.ID)
			continue
		case row[r.N] > 0:
			v.add(Disagreement, r.N, "two rows, %d and %d", e.Rows[row[r.N]-1].ID, r.ID)
			continue
		}
		row[r.N] = int32(i + 1)
		if !r.Sent && !r.Dead {
			v.add(Leftover, r.N, "row %d is neither sent nor dead after %d attempts", r.ID, r.Attempts)
		}
		if r.Dead && !e.doomed(r.N) {
			v.add(DeadLetter, r.N, "row %d is a dead letter after %d attempts", r.ID, r.Attempts)
		}
		if r.Sent && (r.Attempts < 1 || r.Attempts > 1 && !e.Refusals) {
			v.add(SpentAttempt, r.N, "row %d was sent with %d attempts", r.ID, r.Attempts)
		}
	}
}

// checkTask compares what the producer, the stream and the table say of a task.
func (e *Evidence) checkTask(v *Verdict, t *Transaction, n int64, m *Message, r *Row) {
	switch {
	case t.Outcome == RolledBack:
		if m != nil {
			v.add(Phantom, n, "stored, although its transaction was rolled back")
		}
		if r != nil {
			v.add(Phantom, n, "row %d is there, although its transaction was rolled back", r.ID)
		}
	case r == nil && e.vanishable(t):
		v.Vanished++
	case r == nil && t.Outcome == Committed:
		v.add(Lost, n, "committed, and its row is gone (stored: %t)", m != nil)
	case r == nil && m != nil:
		v.add(Phantom, n, "stored, although its transaction (%s) left no row", t.Outcome)
	case r != nil && r.Sent && m == nil:
		v.add(Lost, n, "row %d counts as sent, the stream does not have it (transaction %s)", r.ID, t.Outcome)
	case r != nil && m != nil && m.TaskID != r.ID:
		v.add(Disagreement, n, "row %d is stored as task %d", r.ID, m.TaskID)
	}
}

// checkOrder checks that the tasks of a key are stored in the order of their ids.
func (e *Evidence) checkOrder(v *Verdict, owner []int32) {
	last := map[string]int64{}
	for i := range e.Stored {
		m := &e.Stored[i]
		if m.N < 1 || m.N > e.Tasks || owner[m.N] == 0 {
			continue
		}
		key := e.Transactions[owner[m.N]-1].Key
		if key == "" {
			continue
		}
		if m.TaskID < last[key] {
			v.add(WrongOrder, m.N, "task %d of key %q is stored after task %d", m.TaskID, key, last[key])
			continue
		}
		last[key] = m.TaskID
	}
}
