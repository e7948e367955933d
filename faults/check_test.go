package faults

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func sumOf(n int64) uint64 { return uint64(n) * 7 }

// goodRun draws what a run without a fault of ours leaves behind.
func goodRun(t *rapid.T) Evidence {
	var h History
	var stored []Message
	var rows []Row
	now := time.Unix(1_800_000_000, 0)
	id := int64(0)
	for range rapid.IntRange(1, 30).Draw(t, "transactions") {
		tx := Transaction{
			Count:    rapid.Int64Range(1, 5).Draw(t, "count"),
			Key:      rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"),
			Outcome:  rapid.SampledFrom([]Outcome{Unknown, Committed, RolledBack}).Draw(t, "outcome"),
			Volatile: rapid.Bool().Draw(t, "volatile"),
			Begun:    now, Ended: now.Add(time.Millisecond),
		}
		tx.First = h.Reserve(tx.Count)
		h.Record(tx)
		now = now.Add(time.Minute)
		crashed := rapid.IntRange(0, 3).Draw(t, "crash") == 0
		if crashed {
			h.Crashed(tx.Ended.Add(time.Millisecond))
		}
		there := tx.Outcome == Committed && (!crashed || !tx.Volatile || rapid.Bool().Draw(t, "survives")) ||
			tx.Outcome == Unknown && rapid.Bool().Draw(t, "committed")
		// What a crash took back may have been sent before.
		sent := there || crashed && tx.Volatile && tx.Outcome != RolledBack && rapid.Bool().Draw(t, "sent")
		for n := tx.First; n < tx.First+tx.Count; n++ {
			id++
			if there {
				rows = append(rows, Row{N: n, ID: id, Attempts: 1, Sent: true})
			}
			if sent {
				stored = append(stored, Message{N: n, TaskID: id, Sum: sumOf(n), Time: tx.Ended.Add(2 * time.Millisecond)})
			}
		}
	}
	e := h.Evidence()
	e.Stored, e.Rows, e.Sum, e.Window = stored, rows, sumOf, time.Minute
	return e
}

func TestCheckAcceptsGoodRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if v := Check(goodRun(t)); len(v.Counts) > 0 {
			t.Fatalf("findings in a good run: %v", v.Findings)
		}
	})
}

// Each kind of damage, done to a good run, is found and named.
func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	anyMessage := func(t *rapid.T, e *Evidence) *Message {
		return &e.Stored[rapid.IntRange(0, len(e.Stored)-1).Draw(t, "message")]
	}
	// A row of a task that no crash can explain away.
	anyRow := func(t *rapid.T, e *Evidence) *Row {
		return &e.Rows[rapid.IntRange(0, len(e.Rows)-1).Draw(t, "row")]
	}
	without := func(e *Evidence, n int64) {
		e.Stored = slices.DeleteFunc(e.Stored, func(m Message) bool { return m.N == n })
	}
	for _, tt := range []struct {
		name   string
		class  Class
		damage func(*rapid.T, *Evidence)
	}{
		{"message gone", Lost, func(t *rapid.T, e *Evidence) { without(e, anyRow(t, e).N) }},
		{"row and message gone", Lost, func(t *rapid.T, e *Evidence) {
			n := anyRow(t, e).N
			e.Crashes = nil
			e.Rows = slices.DeleteFunc(e.Rows, func(r Row) bool { return r.N == n })
			without(e, n)
			for i := range e.Transactions {
				if tx := &e.Transactions[i]; tx.First <= n && n < tx.First+tx.Count {
					tx.Outcome = Committed
				}
			}
		}},
		{"message of nobody", Phantom, func(_ *rapid.T, e *Evidence) {
			e.Stored = append(e.Stored, Message{N: e.Tasks + 1})
		}},
		{"message of a rollback", Phantom, func(t *rapid.T, e *Evidence) {
			n := anyRow(t, e).N
			e.Rows = slices.DeleteFunc(e.Rows, func(r Row) bool { return r.N == n })
			for i := range e.Transactions {
				if tx := &e.Transactions[i]; tx.First <= n && n < tx.First+tx.Count {
					tx.Outcome = RolledBack
				}
			}
		}},
		{"message twice", DuplicateInside, func(t *rapid.T, e *Evidence) {
			m := *anyMessage(t, e)
			m.Time = m.Time.Add(e.Window)
			e.Stored = append(e.Stored, m)
		}},
		{"message twice, late", DuplicateOutside, func(t *rapid.T, e *Evidence) {
			m := *anyMessage(t, e)
			m.Time = m.Time.Add(e.Window + 1)
			e.Stored = append(e.Stored, m)
		}},
		{"content", WrongContent, func(t *rapid.T, e *Evidence) { anyMessage(t, e).Sum++ }},
		{"order", WrongOrder, func(t *rapid.T, e *Evidence) {
			for i := range e.Transactions {
				e.Transactions[i].Key = "one"
			}
			if len(e.Stored) < 2 {
				t.Skip()
			}
			i := rapid.IntRange(1, len(e.Stored)-1).Draw(t, "swap")
			e.Stored[i-1], e.Stored[i] = e.Stored[i], e.Stored[i-1]
		}},
		{"unsent row", Leftover, func(t *rapid.T, e *Evidence) { anyRow(t, e).Sent = false }},
		{"dead row", DeadLetter, func(t *rapid.T, e *Evidence) { anyRow(t, e).Dead = true }},
		{"doomed row", Leftover, func(t *rapid.T, e *Evidence) {
			n := anyRow(t, e).N
			e.Doomed = func(m int64) bool { return m == n }
			for i := range e.Rows {
				if r := &e.Rows[i]; r.N == n {
					r.Sent = false
				}
			}
		}},
		{"second attempt", SpentAttempt, func(t *rapid.T, e *Evidence) { anyRow(t, e).Attempts = 2 }},
		{"part of a transaction", Torn, func(t *rapid.T, e *Evidence) {
			r := *anyRow(t, e)
			e.Transactions = append(e.Transactions, Transaction{First: e.Tasks + 1, Count: 2})
			e.Tasks += 2
			r.N = e.Tasks
			e.Rows = append(e.Rows, r)
		}},
		{"another row's message", Disagreement, func(t *rapid.T, e *Evidence) { anyRow(t, e).ID = -1 }},
		{"row twice", Disagreement, func(t *rapid.T, e *Evidence) { e.Rows = append(e.Rows, *anyRow(t, e)) }},
		{"number without transaction", Disagreement, func(_ *rapid.T, e *Evidence) { e.Tasks++ }},
		{"slow", Late, func(_ *rapid.T, e *Evidence) {
			e.Bound = time.Microsecond
			for i := range e.Transactions {
				if e.Transactions[i].Outcome == Unknown {
					e.Transactions[i].Outcome = Committed
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				e := goodRun(t)
				if len(e.Rows) == 0 {
					t.Skip()
				}
				tt.damage(t, &e)
				v := Check(e)
				if v.Counts[tt.class] == 0 {
					t.Fatalf("not found; findings: %v", v.Findings)
				}
			})
		})
	}
}
