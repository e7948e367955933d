package dispatcher

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestTaskIsStoredAsPromised(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	id := query[int64](r, `insert into outbox (kind, payload, headers)
		values ('order.created', '{"n": 1}', '{"traceparent": "00-abc-def-01"}') returning id`)
	raw := query[int64](r, `insert into outbox (kind, body) values ('bytes', '\x00ff0a') returning id`)
	r.awaitSettled()
	d.halt()

	msgs := r.stored()
	if len(msgs) != 2 {
		t.Fatalf("%d messages stored, want 2", len(msgs))
	}
	source := query[string](r, `select name from outbox_source`)
	created := query[time.Time](r, `select created_at from outbox where id = $1`, id)
	m := msgs[0]
	if m.Subject != "outbox.order.created" || string(m.Data) != `{"n": 1}` {
		t.Errorf("subject %q, data %q", m.Subject, m.Data)
	}
	for name, want := range map[string]string{
		"Nats-Msg-Id":       fmt.Sprintf("%s.%d.%s", source, id, strconv.FormatInt(created.UnixMicro(), 36)),
		"Outbox-Task-Id":    strconv.FormatInt(id, 10),
		"Outbox-Kind":       "order.created",
		"Outbox-Attempt":    "1",
		"Outbox-Created-At": created.UTC().Format("2006-01-02T15:04:05.000000Z"),
		"traceparent":       "00-abc-def-01",
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	if got := string(msgs[1].Data); got != "\x00\xff\x0a" {
		t.Errorf("bytes came as %q", got)
	}
	for _, id := range []int64{id, raw} {
		if n := query[int](r, `select count(*) from outbox where id = $1 and attempts = 1 and sent_at is not null and last_error is null`, id); n != 1 {
			t.Errorf("task %d is not marked as sent with one attempt", id)
		}
	}
}

func TestRollbackNeverSends(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `insert into outbox (kind, payload) values ('ghost', '{}')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.insert("real", `{}`)
	r.awaitSettled()
	msgs := r.stored()
	if len(msgs) != 1 || msgs[0].Subject != "outbox.real" {
		t.Errorf("stored %d messages, want the committed one alone", len(msgs))
	}
}

// Inserts of every form wake the dispatcher: with sweeps ten minutes apart
// nothing else can.
func TestEveryFormOfInsertWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	eventually(t, "the dispatcher listens", healthyWake(d))
	awaitWakes := func(n int) {
		t.Helper()
		r.awaitSettled()
		eventually(t, "the wakes are seen", func() error {
			if got := see(r.observer, func(w *watcher) int { return w.wakes["notify"] }); got != n {
				return fmt.Errorf("%d wakes for %d commits", got, n)
			}
			return nil
		})
	}
	r.insert("one", `{}`)
	awaitWakes(1)
	r.exec(`insert into outbox (kind, payload) values ('two', '{}'), ('three', '{}')`)
	awaitWakes(2)
	r.insertMany(10)
	awaitWakes(3)
	rows := [][]any{{"copied", map[string]int{"a": 1}}, {"copied", map[string]int{"a": 2}}}
	if _, err := r.db.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"kind", "payload"}, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	awaitWakes(4)
	if n := len(r.storedIDs()); n != 15 {
		t.Errorf("%d tasks stored, want 15", n)
	}
}

// A transaction that inserted first and commits last must not be passed over.
func TestLateCommitterIsSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	late, err := pgtest.Connect(t, r.dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Older than where a hot pass starts, as after a long transaction.
	var lateID int64
	if err := late.QueryRow(t.Context(), `insert into outbox (kind, payload, send_after, created_at)
		values ('late', '{}', now() - interval '1 hour', now() - interval '1 hour') returning id`).Scan(&lateID); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if id := r.insert("early", `{}`); id <= lateID {
			t.Fatalf("id %d is not above %d", id, lateID)
		}
	}
	r.awaitSettled()
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.awaitSettled()
	if r.storedIDs()[lateID] != 1 {
		t.Error("the late task is not stored")
	}
}

// A late committer whose wake coincides with that of fresh tasks is found soon,
// though the hot pass does find something.
func TestLateCommitterAmongFreshTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start(func(c *Config) { c.PollInterval = time.Millisecond })
	eventually(t, "the dispatcher listens", healthyWake(d))
	// After this task the looks of the time before it listened are over.
	r.insert("first", `{}`)
	r.awaitSettled()
	r.exec(`insert into outbox (kind, payload, send_after)
		select 'mixed', '{}', now() - make_interval(hours => g % 2) from generate_series(1, 10) g`)
	r.awaitSettled()
}

func TestScheduledTaskLeavesWhenDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	eventually(t, "the dispatcher listens", healthyWake(d))
	id := query[int64](r, `insert into outbox (kind, payload, send_after) values ('later', '{}', clock_timestamp() + interval '2 seconds') returning id`)
	r.awaitSettled()
	due := query[time.Time](r, `select send_after from outbox where id = $1`, id)
	msgs := r.stored()
	if len(msgs) != 1 {
		t.Fatalf("%d messages", len(msgs))
	}
	// Both clocks are this machine's. The timer explains the arrival (the
	// sweep is ten minutes away); how late it was is logged, as it depends
	// on the machine.
	lateness := msgs[0].Time.Sub(due)
	t.Logf("stored %v after it was due", lateness)
	if lateness < 0 {
		t.Errorf("stored %v before it was due", -lateness)
	}
}

func healthyWake(d *running) func() error {
	return func() error {
		if h := d.Health().Wake; !h.Healthy {
			return fmt.Errorf("wake source: %s", h.Detail)
		}
		return nil
	}
}

func TestStopFinishesTheClaimInHand(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	const tasks = 5000
	r.insertMany(tasks)
	d := r.start(func(c *Config) { c.Batch = 50 })
	eventually(t, "some tasks are settled", func() error {
		if see(r.observer, func(w *watcher) int { return w.outcomes[Stored] }) < 200 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	d.halt()
	sent := query[int](r, `select count(*) from outbox where sent_at is not null`)
	if got := len(r.stored()); got != sent {
		t.Errorf("%d messages stored, %d tasks marked as sent: a stop must leave no difference", got, sent)
	}
	if n := query[int](r, `select count(*) from outbox where sent_at is null and (attempts <> 0 or last_error is not null)`); n > 0 {
		t.Errorf("%d unsent tasks paid an attempt for the stop", n)
	}
	if sent == tasks {
		t.Log("everything was sent before the stop; the test proves less on this run")
	}
	r.start()
	r.awaitSettled()
	// On a machine that is held up, answers come too late: those make duplicates too.
	twins := see(r.observer, func(w *watcher) int { return w.outcomes[Duplicate] })
	lost := see(r.observer, func(w *watcher) int { return w.released + w.outcomes[Unavailable] })
	if twins > lost {
		t.Errorf("a stop made duplicates: %d, and %d tasks were without an answer", twins, lost)
	}
}

// The latency counts from when the task was due, by the database's clock.
func TestLatencyCountsFromWhenTheTaskWasDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into outbox (kind, payload, created_at, send_after) values ('a', '{}', now() - interval '2 hours', now() - interval '1 hour')`)
	r.start()
	r.awaitSettled()
	eventually(t, "the observer is told", func() error {
		got := see(r.observer, func(w *watcher) []time.Duration { return w.latency })
		if len(got) != 1 {
			return fmt.Errorf("%d results", len(got))
		}
		if got[0] < time.Hour || got[0] > time.Hour+patience {
			t.Errorf("latency %v, want an hour and a little", got[0])
		}
		return nil
	})
}

// A claim that is cut by bytes keeps rows locked that it does not take. They must
// not be forgotten.
func TestLargeTasksAreAllSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into outbox (kind, body) select 'large', convert_to(repeat('x', 1000 + 1000 * (g * 7919 % 100)), 'UTF8') from generate_series(1, 400) g`)
	r.start(func(c *Config) { c.BatchBytes = 200_000 })
	r.awaitAll(400)
}

func TestFitting(t *testing.T) {
	for _, tt := range []struct{ tasks, bytes, want int }{
		{0, 0, 500},
		{500, 1000, 500},
		{4, 4 << 20, 4},
		{1, 50 << 20, 1},
		{10, 1 << 20, 40},
	} {
		c := &claim{tasks: make([]Task, tt.tasks), bytes: int64(tt.bytes)}
		if got := fitting(c, 500, 4<<20); got != int64(tt.want) {
			t.Errorf("%d tasks of %d bytes in all: %d fit, want %d", tt.tasks, tt.bytes, got, tt.want)
		}
	}
}

func TestHeadersMayBeLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	headers, err := json.Marshal(map[string]string{"X-Big": strings.Repeat("v", 15_000)})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into outbox (kind, payload, headers) values ('a', '{}', $1)`, string(headers))
	r.awaitSettled()
	if msgs := r.stored(); len(msgs) != 1 || len(msgs[0].Header.Get("X-Big")) != 15_000 {
		t.Error("the header did not arrive whole")
	}
}
