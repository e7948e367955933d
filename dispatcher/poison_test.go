package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// poison makes the database refuse every UPDATE of the rows that the condition
// names, as a constraint or a trigger of the user's may.
func (r *rig) poison(condition string) {
	r.t.Helper()
	r.exec(`create function poison() returns trigger language plpgsql as $$
		begin raise exception 'poison' using errcode = 'P0001'; end $$`)
	r.exec(`create trigger poison before update on outbox for each row when (` + condition + `) execute function poison()`)
}

// awaitOthers waits until all tasks but those of kind poison are sent.
func (r *rig) awaitOthers() {
	r.t.Helper()
	eventually(r.t, "the others are sent", func() error {
		if n := query[int](r, `select count(*) from outbox where kind <> 'poison' and sent_at is null`); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	if n := query[int](r, `select count(*) from outbox where kind <> 'poison' and attempts <> 1`); n > 0 {
		r.t.Errorf("%d others needed more than one attempt", n)
	}
}

// Rows that cannot be marked, anywhere in the queue, hold up no other.
func TestRowsThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	for name, position := range map[string]string{"first": "g <= 3", "between": "g % 40 = 20", "last": "g > 97"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.poison("old.kind = 'poison'")
			r.exec(`insert into outbox (kind, payload, send_after)
				select case when ` + position + ` then 'poison' else 'good' end, '{}', now() - make_interval(secs => 200 - g)
				from generate_series(1, 100) g`)
			d := r.start()
			r.awaitOthers()
			// A fresh one, found by a hot pass.
			eventually(t, "the dispatcher listens", healthyWake(d))
			r.exec(`insert into outbox (kind, payload) values ('poison', '{}')`)
			r.insert("good", `{}`)
			r.awaitOthers()
			if n := query[int](r, `select count(*) from outbox where kind = 'poison' and attempts = 0`); n < 3 {
				t.Errorf("%d rows are untouched", n)
			}
		})
	}
}

// Many such rows are found quickly, one after the other.
func TestManyRowsThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.poison("old.kind = 'poison'")
	r.exec(`insert into outbox (kind, payload) select 'poison', '{}' from generate_series(1, 60)`)
	r.exec(`insert into outbox (kind, payload) select 'good', '{}' from generate_series(1, 20)`)
	r.start()
	r.awaitOthers()
}

// A row that can be marked as sent, but whose mark cannot be taken back.
func TestRowsThatCannotBeSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.poison("old.kind = 'poison' and new.sent_at is null")
	r.exec(`insert into outbox (kind, payload) select case when g % 40 = 20 then 'poison' else 'good' end, '{}' from generate_series(1, 100) g`)
	r.startFaulty(func(_ int, tasks []Task, results []Result) {
		for i, task := range tasks {
			if task.Kind == "poison" {
				results[i] = Result{Outcome: Refused, Err: errors.New("no"), Acked: time.Now()}
			}
		}
	})
	r.awaitOthers()
	if n := query[int](r, `select count(*) from outbox where kind = 'poison' and sent_at is not null`); n > 0 {
		t.Errorf("%d refused tasks count as sent", n)
	}
}

// A body whose text is thousands of times larger than its stored form must not
// fill the memory: the claim takes fewer.
func TestSwollenPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// 20 numbers of 131,072 digits each, in about 300 stored bytes.
	r.exec(`insert into outbox (kind, payload) select 'swollen', jsonb_build_object('n', (select jsonb_agg('1e131071'::numeric) from generate_series(1, 20)))
		from generate_series(1, 20)`)
	r.insert("good", `{}`)
	r.start(func(c *Config) { c.BatchBytes = 1 << 20 })
	r.awaitSettled()
	if n := query[int](r, `select count(*) from outbox where kind = 'swollen' and last_error like 'body of 26%'`); n != 20 {
		t.Errorf("%d of 20 are dead for their size", n)
	}
	if n := query[int](r, `select count(*) from outbox where kind = 'good' and sent_at is not null`); n != 1 {
		t.Error("their neighbour is not sent")
	}
}

func TestHeldTasks(t *testing.T) {
	h := held[int64]{retry: backoff{min: time.Second, max: time.Minute}}
	now := time.Unix(1000, 0)
	if ids := h.list(now); ids == nil || len(ids) != 0 {
		t.Errorf("nothing held: %v, want an empty list that is not nil", ids)
	}
	first := h.add(7, now)
	if ids := h.list(now); len(ids) != 1 || ids[0] != 7 {
		t.Errorf("held %v, want 7", ids)
	}
	if ids := h.list(now.Add(first)); len(ids) != 0 {
		t.Errorf("held %v after its time", ids)
	}
	if again := h.add(7, now); again != first {
		t.Errorf("seen twice at once: held for %v, want %v as before", again, first)
	}
	if second := h.add(7, now.Add(time.Minute)); second < time.Second {
		t.Errorf("held for %v the second time, want longer than the first", second)
	}
	h.forget(7)
	if ids := h.list(now); len(ids) != 0 {
		t.Errorf("held %v, though forgotten", ids)
	}
	for id := range int64(3 * maxHeld) {
		h.add(id, now)
	}
	if n := len(h.list(now)); n > maxHeld {
		t.Errorf("%d held, want at most %d", n, maxHeld)
	}
}

// Without the right to UPDATE nothing will ever be sent: say so at the start.
func TestRunNeedsRights(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	role := "reader_of_" + r.db.Config().Database
	r.exec(`create role ` + role + ` login`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = r.db.Exec(ctx, `drop owned by `+role)
		_, _ = r.db.Exec(ctx, `drop role `+role)
	})
	r.exec(`grant select on outbox, outbox_source to ` + role)
	limited := *r
	limited.dsn = withUser(t, r.dsn, role)
	d := limited.make()
	if err := d.Run(t.Context()); err == nil || !errors.Is(err, errNoRights) {
		t.Errorf("Run: %v, want an error about rights", err)
	}
	if err := d.Run(t.Context()); err == nil {
		t.Error("a second Run went well")
	}
}
