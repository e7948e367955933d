package dispatcher

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// dbRig is a table without a broker.
func dbRig(t *testing.T) (*rig, *table) {
	t.Helper()
	dsn := pgtest.NewDB(t)
	r := &rig{t: t, dsn: dsn, db: pgtest.Connect(t, dsn)}
	return r, newTable(r.pool(), "public", DefaultPublishTimeout)
}

func mustClaim(t *testing.T, tab *table, a ask) *claim {
	t.Helper()
	if a.bytes == 0 {
		a.bytes = DefaultBatchBytes
	}
	if a.fetch == 0 {
		a.fetch = 1 << 20
	}
	c, err := tab.claim(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.release)
	return c
}

func TestClaimTakesTheOldestUpToItsLimit(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.exec(`insert into outbox (kind, payload, send_after) select 'k', '{}', now() - make_interval(secs => g) from generate_series(1, 100) g`)
	c := mustClaim(t, tab, ask{tasks: 10})
	if len(c.tasks) != 10 || !c.more {
		t.Fatalf("claimed %d, more %v; want 10 and more", len(c.tasks), c.more)
	}
	for i, task := range c.tasks {
		// The last inserted are the oldest.
		if want := int64(100 - i); task.ID != want {
			t.Errorf("task %d of the claim is %d, want %d", i, task.ID, want)
		}
	}
	// What others hold is passed over, not waited for.
	c2 := mustClaim(t, tab, ask{tasks: 100})
	if len(c2.tasks) != 90 || c2.more {
		t.Errorf("a second claim took %d, more %v; want the other 90 and no more", len(c2.tasks), c2.more)
	}
	c.release()
	if n := query[int](r, `select count(*) from outbox where sent_at is null and attempts = 0`); n != 100 {
		t.Errorf("%d tasks are as they were after a release, want 100", n)
	}
}

// A pass goes on from where the last claim ended, and a hot one starts a little
// before now.
func TestClaimStartsWhereItIsTold(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.exec(`insert into outbox (kind, payload, send_after) select 'old', '{}', now() - interval '1 hour' from generate_series(1, 5)`)
	r.exec(`insert into outbox (kind, payload) select 'new', '{}' from generate_series(1, 5)`)
	if c := mustClaim(t, tab, ask{tasks: 100, hot: true}); len(c.tasks) != 5 || c.tasks[0].Kind != "new" {
		t.Errorf("a hot claim took %d tasks", len(c.tasks))
	} else {
		c.release()
	}
	first := mustClaim(t, tab, ask{tasks: 5})
	if first.tasks[0].Kind != "old" {
		t.Errorf("a full claim began with %q", first.tasks[0].Kind)
	}
	first.release()
	if c := mustClaim(t, tab, ask{tasks: 100, from: first.end}); len(c.tasks) != 5 || c.tasks[0].Kind != "new" {
		t.Errorf("after the old tasks' place: %d tasks", len(c.tasks))
	}
}

func TestClaimIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.exec(`insert into outbox (kind, body) select 'k', convert_to(repeat('x', 100000), 'UTF8') from generate_series(1, 20)`)
	r.exec(`insert into outbox (kind, payload) select 'k', jsonb_build_object('x', repeat('x', 100000)) from generate_series(1, 20)`)
	c := mustClaim(t, tab, ask{tasks: 100, bytes: 1_000_000, fetch: 200_000})
	if len(c.tasks) != 10 || !c.more || !c.cut {
		t.Errorf("claimed %d tasks of 100 kB, more %v; want 10 of 1 MB in all", len(c.tasks), c.more)
	}
	c.release()
	if c := mustClaim(t, tab, ask{tasks: 100, bytes: 1024, fetch: 200_000}); len(c.tasks) != 1 {
		t.Errorf("claimed %d tasks, want the one that is larger than the limit alone", len(c.tasks))
	}
}

// A body that the broker would refuse is not read into memory.
func TestClaimDoesNotFetchWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.exec(`insert into outbox (kind, body) values ('k', convert_to(repeat('x', 3000000), 'UTF8')), ('k', 'small')`)
	r.exec(`insert into outbox (kind, payload) values ('k', jsonb_build_object('x', repeat('x', 3000000)))`)
	c := mustClaim(t, tab, ask{tasks: 10, bytes: 100 << 20})
	for i, want := range []struct{ size, body int }{{3_000_000, 0}, {5, 5}, {3_000_009, 0}} {
		if got := c.tasks[i]; got.size != want.size || len(got.Body) != want.body {
			t.Errorf("task %d: size %d with %d bytes fetched, want %d and %d", i, got.size, len(got.Body), want.size, want.body)
		}
	}
}

// The limit holds under every join that the planner could choose; "id in (select
// ... limit n)" claims all 1,000 rows under a nested loop.
func TestClaimNeverTakesMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	r.insertMany(1000)
	r.exec(`analyze outbox`)
	for _, off := range []string{"", "hashjoin", "mergejoin", "nestloop", "indexscan"} {
		conn := pgtest.Connect(t, r.dsn)
		if off != "" {
			if _, err := conn.Exec(t.Context(), "set enable_"+off+" = off"); err != nil {
				t.Fatal(err)
			}
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, stmt := range []string{tab.claimStmt, tab.cutStmt} {
			tag, err := tx.Exec(t.Context(), stmt, false, place{}.timestamp(), 0, 5, []int64{}, []string{}, 1<<20, 1<<20, tab.limits[1], tab.limits[2])
			if err != nil {
				t.Fatal(err)
			}
			if tag.RowsAffected() != 5 {
				t.Errorf("without %q: claimed %d, want 5", off, tag.RowsAffected())
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// claimPlan explains a claim in a transaction with the claim's own settings,
// and rolls it back.
func claimPlan(t *testing.T, r *rig, tab *table, from place) (plan string, buffers int) {
	t.Helper()
	conn := pgtest.Connect(t, r.dsn)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), localSQL, tab.limits[0]); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), "explain (analyze, buffers, costs off, timing off) "+tab.claimStmt,
		false, from.timestamp(), from.id, 100, []int64{}, []string{}, 1<<20, 1<<20, tab.limits[1], tab.limits[2])
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	walk := false // the node that walks the due index; its buffers are on one of its lines
	for _, line := range lines {
		plan += line + "\n"
		walk = walk || strings.Contains(line, "using outbox_due")
		if m := regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`).FindStringSubmatch(line); m != nil && walk && buffers == 0 {
			hit, _ := strconv.Atoi(m[1])
			read, _ := strconv.Atoi(m[2])
			buffers = hit + read
		}
	}
	return plan, buffers
}

func TestClaimUsesItsIndexes(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	check := func(when string) {
		t.Helper()
		plan, _ := claimPlan(t, r, tab, place{})
		for _, want := range []string{"using outbox_due", "using outbox_pkey"} {
			if !regexp.MustCompile(want).MatchString(plan) {
				t.Errorf("%s: the plan is not %q:\n%s", when, want, plan)
			}
		}
	}
	check("never analysed")
	// Analysed when everything is unsent, then everything sent: statistics
	// that call for a sequential scan.
	r.insertMany(5000)
	r.exec(`analyze outbox`)
	check("analysed full")
	r.exec(`update outbox set sent_at = now()`)
	check("analysed before it was sent")
	r.exec(`vacuum analyze outbox`)
	r.insertMany(10)
	check("analysed empty")
}

// Behind dead index entries that an old snapshot keeps, a claim from the
// beginning reads them all again; one that continues a pass does not.
func TestClaimCostBehindDeadEntries(t *testing.T) {
	t.Parallel()
	r, tab := dbRig(t)
	holder, err := pgtest.Connect(t, r.dsn).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := holder.QueryRow(t.Context(), `select count(*) from outbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into outbox (kind, payload, send_after) select 'dead', '{}', now() - interval '1 minute' from generate_series(1, 50000)`)
	r.exec(`update outbox set sent_at = now()`)
	r.insertMany(100)
	last := query[int64](r, `select max(id) from outbox where kind = 'dead'`)
	at := query[time.Time](r, `select send_after from outbox where id = $1`, last)

	_, begin := claimPlan(t, r, tab, place{})
	_, walked := claimPlan(t, r, tab, place{after: at, id: last})
	t.Logf("buffers: from the beginning %d, continuing the pass %d", begin, walked)
	if walked*5 > begin {
		t.Errorf("continuing the pass reads %d buffers, from the beginning %d: the place does not help", walked, begin)
	}
}

// The server itself ends the transaction of a dispatcher that froze.
func TestServerEndsAFrozenClaim(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	tab := newTable(r.pool(), "public", time.Second)
	r.insertMany(3)
	// Connecting must not take from the claim's short time.
	if err := tab.pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	frozen := mustClaim(t, tab, ask{tasks: 3})
	if len(frozen.tasks) != 3 {
		t.Fatalf("claimed %d", len(frozen.tasks))
	}
	eventually(t, "the rows are free again", func() error {
		c, err := tab.claim(t.Context(), ask{tasks: 3, bytes: 1 << 20, fetch: 1 << 20})
		if err != nil {
			return err
		}
		defer c.release()
		if len(c.tasks) != 3 {
			return fmt.Errorf("%d of 3", len(c.tasks))
		}
		return nil
	})
	if err := frozen.settle(t.Context(), 3, undo{}); err == nil {
		t.Error("the frozen claim could still be settled")
	}
}

func TestRowSecurityIsAnErrorNotAnEmptyTable(t *testing.T) {
	t.Parallel()
	r, _ := dbRig(t)
	r.insertMany(1)
	role := "limited_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	r.exec(`create role ` + role + ` login`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = r.db.Exec(ctx, `drop owned by `+role)
		_, _ = r.db.Exec(ctx, `drop role `+role)
	})
	r.exec(`grant select, update on outbox to ` + role)
	r.exec(`alter table outbox enable row level security`)
	limited := *r
	limited.dsn = withUser(t, r.dsn, role)
	tab := newTable(limited.pool(), "public", DefaultPublishTimeout)
	if c, err := tab.claim(t.Context(), ask{tasks: 1, bytes: 1 << 20, fetch: 1 << 20}); err == nil {
		t.Errorf("no error, and %d tasks", len(c.tasks))
		c.release()
	}
}
