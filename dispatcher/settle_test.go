package dispatcher

import (
	"errors"
	"math"
	"net/url"
	"strings"
	"testing"
)

func withUser(t *testing.T, dsn, user string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("user", user)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestSettleRecordsEachOutcome(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.insertMany(5)
	c := mustClaim(t, tab, ask{tasks: 5})
	var u undo
	u.add(c.tasks[1].ID, true, false, 3600, errors.New("refused"))
	u.add(c.tasks[2].ID, true, true, -1, errors.New("rejected"))
	u.add(c.tasks[3].ID, false, false, -1, errors.New("silence"))
	u.add(c.tasks[4].ID, false, false, 60, errors.New("silence for it alone"))
	if err := c.settle(t.Context(), 1, u); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"sent 1 now -",
		"waiting 1 in an hour refused",
		"dead 1 now rejected",
		"waiting 0 now silence",
		"waiting 0 in a minute silence for it alone",
	}
	for i, w := range want {
		got := query[string](r, `select format('%s %s %s %s',
			case when sent_at is not null then 'sent' when dead_at is not null then 'dead' else 'waiting' end, attempts,
			case when send_after < now() then 'now' when send_after < now() + interval '2 minutes' then 'in a minute' else 'in an hour' end,
			coalesce(last_error, '-')) from outbox where id = $1`, c.tasks[i].ID)
		if got != w {
			t.Errorf("task %d: %q, want %q", i, got, w)
		}
	}
}

// A settlement that does not account for every marked row must not commit.
func TestSettleDoubtsCounts(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*claim) error{
		"one task forgotten": func(c *claim) error { return c.settle(t.Context(), 2, undo{}) },
		"one task too many":  func(c *claim) error { return c.settle(t.Context(), 4, undo{}) },
		"a foreign row": func(c *claim) error {
			var u undo
			u.add(-1, true, false, 0, errors.New("x"))
			return c.settle(t.Context(), 2, u)
		},
		"the same row twice": func(c *claim) error {
			var u undo
			u.add(c.tasks[0].ID, true, false, 0, errors.New("x"))
			u.add(c.tasks[0].ID, true, false, 0, errors.New("x"))
			return c.settle(t.Context(), 1, u)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, tab := dbRig(t)
			r.insertMany(3)
			c := mustClaim(t, tab, ask{tasks: 3})
			if err := settle(c); !errors.Is(err, errDoubt) {
				t.Errorf("got %v, want doubt", err)
			}
			if n := query[int](r, `select count(*) from outbox where sent_at is null and attempts = 0`); n != 3 {
				t.Errorf("%d of 3 tasks are due again", n)
			}
		})
	}
}

// COMMIT of an aborted transaction reports no error.
func TestSettleNoticesAnAbortedTransaction(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.insertMany(1)
	c := mustClaim(t, tab, ask{tasks: 1})
	if _, err := c.conn.Exec(t.Context(), `select 1/0`); err == nil {
		t.Fatal("division by zero went well")
	}
	if err := c.settle(t.Context(), 1, undo{}); err == nil {
		t.Error("settled in an aborted transaction")
	}
	if n := query[int](r, `select count(*) from outbox where sent_at is null`); n != 1 {
		t.Error("the task counts as sent")
	}
}

// Values at the edge must not abort the settlement of the whole batch.
func TestSettleSurvivesExtremes(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.insertMany(2)
	r.exec(`update outbox set attempts = 2147483647`)
	c := mustClaim(t, tab, ask{tasks: 2})
	var u undo
	u.add(c.tasks[0].ID, true, false, math.MaxFloat64, errors.New("a\x00b\xff"+strings.Repeat("x", 100_000)))
	u.add(c.tasks[1].ID, false, true, math.Inf(1), errors.New(""))
	if err := c.settle(t.Context(), 0, u); err != nil {
		t.Fatal(err)
	}
	if got := query[int](r, `select attempts from outbox where id = $1`, c.tasks[0].ID); got != math.MaxInt32 {
		t.Errorf("attempts %d", got)
	}
	if got := query[string](r, `select last_error from outbox where id = $1`, c.tasks[0].ID); len(got) > 1000 {
		t.Errorf("last_error of %d bytes", len(got))
	}
}
