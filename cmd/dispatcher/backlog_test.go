package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// backlogOf gathers and returns the values of the collector by name.
func backlogOf(t *testing.T, c *backlogCollector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("the scrape fails: %v", err)
	}
	values := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return values
}

// patientCollector keeps a reading until the test has it expire.
func patientCollector(t *testing.T, dsn string) *backlogCollector {
	t.Helper()
	c := newBacklogCollector(pgtest.Pool(t, dsn), "public")
	c.age = time.Hour
	return c
}

func (c *backlogCollector) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = c.read.Add(-c.age)
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn := pgtest.Connect(t, dsn)
	c := patientCollector(t, dsn)
	if v := backlogOf(t, c); v["outbox_pending"] != 0 || v["outbox_oldest_pending_seconds"] != 0 || v["outbox_pending_errors_total"] != 0 {
		t.Errorf("empty outbox: %v", v)
	}
	pgtest.Exec(t, conn, `insert into outbox (kind, payload, send_after) select 'a', '{}', now() - interval '90 s' from generate_series(1, 3);
		insert into outbox (kind, payload, send_after) values ('later', '{}', now() + interval '1 h');
		insert into outbox (kind, payload, sent_at) values ('sent', '{}', now());
		insert into outbox (kind, payload, dead_at) values ('dead', '{}', now())`)
	if v := backlogOf(t, c); v["outbox_pending"] != 0 {
		t.Errorf("read again before it is old: %v", v)
	}
	c.expire()
	if v := backlogOf(t, c); v["outbox_pending"] != 3 || v["outbox_oldest_pending_seconds"] < 90 || v["outbox_oldest_pending_seconds"] > 90+patience.Seconds() {
		t.Errorf("three tasks due for 90 s: %v", v)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// A database that does not answer costs the two gauges, for as long as it does
// not, and never the scrape.
func TestBacklogOfALockedTable(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	c := patientCollector(t, dsn)
	backlogOf(t, c)
	c.expire()
	tx, err := pgtest.Connect(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table outbox"); err != nil {
		t.Fatal(err)
	}
	v := backlogOf(t, c)
	if _, ok := v["outbox_pending"]; ok || v["outbox_pending_errors_total"] != 1 {
		t.Errorf("a locked table: %v", v)
	}
	if v := backlogOf(t, c); v["outbox_pending_errors_total"] != 1 {
		t.Errorf("asked again before it is old: %v", v)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.expire()
	if v := backlogOf(t, c); v["outbox_pending_errors_total"] != 1 || len(v) != 3 {
		t.Errorf("after the lock: %v", v)
	}
}

// The looks at the table keep to its indexes even when the statistics say that
// the table is empty.
func TestLooksNeverScanTheTable(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	pgtest.Exec(t, conn, `alter table outbox set (autovacuum_enabled = off);
		insert into outbox (kind, payload, sent_at) select 'a', '{}', now() from generate_series(1, 5000)`)
	for name, query := range map[string]string{
		"backlog": backlogQuery, "due": dueQuery, "later": laterQuery, "dead": deadQuery,
	} {
		err := boundedRead(t.Context(), conn, time.Minute, func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), "explain "+fmt.Sprintf(query, "outbox"), 100)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "outbox_d") {
				t.Errorf("%s:\n%s", name, plan)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
