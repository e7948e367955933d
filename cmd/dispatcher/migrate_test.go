package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestOutdated(t *testing.T) {
	at := time.Now()
	steps := func(applied ...bool) (all []outbox.Migration) {
		for i, a := range applied {
			m := outbox.Migration{Version: i + 1}
			if a {
				m.AppliedAt = at
			}
			all = append(all, m)
		}
		return all
	}
	for name, c := range map[string]struct {
		steps []outbox.Migration
		want  string
	}{
		"all":                {steps(true, true), ""},
		"none, another tool": {steps(false, false), ""},
		"one is missing":     {steps(true, false), `schema "jobs" is at version 1, this program needs version 2: run dispatcher migrate up --schema jobs`},
	} {
		got := ""
		if err := outdated("jobs", c.steps); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// limitedRole makes a login role with these rights only and returns its DSN.
// The role goes with the server.
func limitedRole(t *testing.T, dsn string, grants ...string) string {
	t.Helper()
	conn := pgtest.Connect(t, dsn)
	role := pgx.Identifier{"role_" + conn.Config().Database}.Sanitize()
	pgtest.Exec(t, conn, "create role "+role+" login")
	for _, g := range grants {
		pgtest.Exec(t, conn, "grant "+g+" to "+role)
	}
	return dsn + "&user=" + strings.Trim(role, `"`)
}

// The program runs, and tells its status, with a role that may do nothing but
// that.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	limited := limitedRole(t, dsn, "select, update on outbox", "select on outbox_source")
	p := start(t, runEnv(limited, s), "run")
	p.await(t, "may not read outbox_migration")
	awaitReady(t, p)
	insert(t, dsn, "email")
	awaitMessage(t, s, "outbox.email")

	q := start(t, []string{"DATABASE_URL=" + limited}, "status")
	if code := q.wait(t); code != 0 || !strings.Contains(q.text(), "schema version unknown") || !strings.Contains(q.text(), "1 listening") {
		t.Errorf("status ends with %d:\n%s", code, q.text())
	}
	if text := fetch(t, p.httpAddr(t), "/metrics"); !strings.Contains(text, "outbox_pending 0") {
		t.Error("the metrics do not show the pending tasks")
	}
	p.stop(t)
}
