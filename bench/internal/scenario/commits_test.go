package scenario

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestEachPartHasItsTurnAndFollowsOthers(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 4; n++ {
		followers := map[[2]int]bool{}
		for round := range 2 * n {
			order := inTurn(n, round)
			for i := range n - 1 {
				followers[[2]int{order[i], order[i+1]}] = true
			}
			if slices.Sort(order); len(order) != n || order[0] != 0 || order[n-1] != n-1 || len(slices.Compact(order)) != n {
				t.Errorf("round %d of %d parts: %v is not each part once", round, n, order)
			}
		}
		for part := range n {
			if n > 1 && !followers[[2]int{part, (part + 1) % n}] && !followers[[2]int{(part + 1) % n, part}] {
				t.Errorf("of %d parts, %d never has its neighbour beside it", n, part)
			}
			if n > 2 && followers[[2]int{part, (part + 1) % n}] != followers[[2]int{(part + 1) % n, part}] {
				t.Errorf("of %d parts, one of %d and %d always follows the other", n, part, (part+1)%n)
			}
		}
	}
}

func TestRoundsEndInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		long bool
		end  time.Duration
		want int
	}{
		"time enough":     {end: time.Hour, want: 3},
		"no time":         {end: -time.Hour, want: 2},
		"no time, --long": {long: true, end: -time.Hour, want: 3},
	} {
		b := &bench{long: c.long, report: newReport("test"), progress: io.Discard}
		rounds, lasts := 0, 0
		err := b.rounds(t.Context(), time.Now().Add(c.end), 3, 1, func(_ context.Context, _ int, last bool) error {
			rounds++
			if last {
				lasts++
			}
			return nil
		})
		if err != nil || rounds != c.want || lasts != 1 {
			t.Errorf("%s: %d rounds, %d of them the last (%v); want %d, one", name, rounds, lasts, err, c.want)
		}
	}
}

func TestNotificationsOfTheTriggerAreCounted(t *testing.T) {
	r := testRig(t)
	for _, c := range []struct {
		variant variant
		lease   bool
		want    int
	}{{none, false, 0}, {classic, false, 3}, {classic, true, 3}, {masked, false, 3}, {masked, true, 0}} {
		if got := countInserts(t, r, c.variant, c.lease); got != c.want {
			t.Errorf("%s, lease %v: %d transactions notified, want %d", c.variant.name, c.lease, got, c.want)
		}
	}
}

// countInserts counts the notifications of two inserts and of a transaction with
// two more.
func countInserts(t *testing.T, r *rig, v variant, lease bool) int {
	t.Helper()
	ctx := t.Context()
	l, err := r.newLaneOf(ctx, v)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, l)
	n, err := countNotified(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, n)
	if lease {
		hold := `select setval('{schema}.outbox_mask', (extract(epoch from clock_timestamp()) * 1000 + 4000)::bigint)`
		if _, err := r.pool.Exec(ctx, l.named(hold)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := l.add(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// Two statements of one transaction, which notifies once; and what a
	// dispatcher tells itself.
	err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		for range 2 {
			if _, err := tx.Exec(ctx, l.named(writeSQL), kind, payload); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "select pg_notify($1, 'canary')", n.channel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.total(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWritersCommitEachTaskOnce(t *testing.T) {
	ctx := t.Context()
	r := testRig(t)
	l, err := r.newLaneOf(ctx, none)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, l)
	w, err := openWriters(ctx, l, 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, w)
	marks := 0
	got, err := w.run(ctx, 200*time.Millisecond, func() { marks++ })
	if err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := r.pool.QueryRow(ctx, l.named(`select count(*) from {outbox}`)).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows != got.commits {
		t.Errorf("%d rows of %d commits", rows, got.commits)
	}
	if warm := 3 * warmCommits; got.counted > got.commits-warm || int64(got.counted) != got.latency.count() || marks != 2 {
		t.Errorf("%d of %d commits count, with %d times and %d marks; want at least %d that do not count, a time for each that does, 2 marks",
			got.counted, got.commits, got.latency.count(), marks, warm)
	}
	// A writer that fails ends the others.
	if _, err := r.pool.Exec(ctx, l.named(`alter table {outbox} rename to gone`)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.run(ctx, time.Hour, func() {}); err == nil {
		t.Error("writers without a table had no error")
	}
}

// testRig has servers for one test.
func testRig(t *testing.T) *rig {
	t.Helper()
	b := &bench{report: newReport("test"), progress: io.Discard}
	r, err := b.start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return r
}

func closed(t *testing.T, c closer) {
	t.Helper()
	if err := c.close(t.Context()); err != nil {
		t.Error(err)
	}
}
