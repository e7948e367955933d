package dispatcher

import (
	"strconv"
	"testing"
)

// The playbook's second check: several dispatchers, no task sent by two. Every
// publish is counted, not only those that the stream kept.
func TestDispatchersShareTheWork(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 5} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			const tasks = 20_000
			r := newRig(t)
			published := make(map[string]int, tasks)
			nc := r.nats.Connect(t)
			sub, err := nc.SubscribeSync("outbox.>")
			if err != nil {
				t.Fatal(err)
			}
			if err := sub.SetPendingLimits(-1, -1); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			r.insertMany(tasks / 2)
			for range n {
				r.start(func(c *Config) { c.Batch = 100 })
			}
			for range 20 {
				r.insertMany(tasks / 40)
			}
			r.awaitSettled()
			// A marker tells that all publishes before it were seen.
			if err := nc.Publish("outbox.marker", nil); err != nil {
				t.Fatal(err)
			}
			total := 0
			for {
				m, err := sub.NextMsg(patience)
				if err != nil {
					t.Fatalf("after %d messages: %v", total, err)
				}
				if m.Subject == "outbox.marker" {
					break
				}
				total++
				published[m.Header.Get(HeaderTaskID)]++
			}
			// A machine that stalls for seconds loses acknowledgements; only
			// those may be sent again.
			if allowed := tasks + see(r.observer, func(w *watcher) int { return w.released + w.outcomes[Unavailable] }); total > allowed {
				t.Errorf("%d publishes of %d tasks, at most %d are explained", total, tasks, allowed)
			}
			if len(published) != tasks {
				t.Errorf("%d different tasks published, want %d", len(published), tasks)
			}
			if n := query[int](r, `select count(*) from outbox where attempts <> 1 or sent_at is null`); n > 0 {
				t.Errorf("%d tasks not sent with exactly one attempt", n)
			}
		})
	}
}

// Ids come back after a crash of asynchronously committing producers or a
// restore. The stream must not take the new task for the old one.
func TestReusedIDIsAnotherMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	first := r.insert("a", `{"first": true}`)
	r.awaitSettled()
	r.exec(`delete from outbox`)
	r.exec(`alter table outbox alter column id restart with ` + strconv.FormatInt(first, 10))
	if second := r.insert("a", `{"second": true}`); second != first {
		t.Fatalf("id %d was not issued again, but %d", first, second)
	}
	r.awaitSettled()
	if msgs := r.stored(); len(msgs) != 2 {
		t.Errorf("%d messages stored, want 2: the second task was dropped as a duplicate", len(msgs))
	}
}

// Two outboxes in one stream number their tasks alike, and may create them at the
// same time: only their names tell them apart.
func TestTwoOutboxesInOneStream(t *testing.T) {
	t.Parallel()
	a := newRig(t)
	b := newBareRig(t, a.nats)
	// Databases made from the test template begin with the same name.
	b.exec(`update outbox_source set name = 'another'`)
	a.start()
	b.start()
	for _, r := range []*rig{a, b} {
		r.exec(`insert into outbox (kind, payload, created_at) select 'k', '{}', '2026-01-01' from generate_series(1, 10)`)
	}
	a.awaitSettled()
	b.awaitSettled()
	if n := len(a.stored()); n != 20 {
		t.Errorf("%d messages stored, want 20", n)
	}
}
