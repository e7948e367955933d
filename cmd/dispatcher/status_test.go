package main

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func statusOf(t *testing.T, dsn, schema string) (sessions, string) {
	t.Helper()
	s, text := fullStatus(t, dsn, schema)
	return s.Dispatchers, text
}

func fullStatus(t *testing.T, dsn, schema string) (status, string) {
	t.Helper()
	vars := []string{"DATABASE_URL=" + dsn, "OUTBOX_SCHEMA=" + schema}
	var out, text strings.Builder
	if code := run(t.Context(), []string{"status", "--json"}, vars, &out, &out); code != exitOK {
		t.Fatalf("status: exit code %d: %s", code, out.String())
	}
	var s status
	if err := json.Unmarshal([]byte(out.String()), &s); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if code := run(t.Context(), []string{"status"}, vars, &text, &text); code != exitOK {
		t.Fatalf("status: exit code %d: %s", code, text.String())
	}
	return s, text.String()
}

// asRole makes a role, until the end of the test, and returns its address. Each
// %s of the grants is the role's name.
func asRole(t *testing.T, dsn, grants string) string {
	t.Helper()
	admin := pgtest.Connect(t, dsn)
	role := "status_" + pgtest.Value[string](t, admin, "select current_database()::text")
	pgtest.Exec(t, admin, "create role "+role+" login; "+strings.ReplaceAll(grants, "%s", role))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "drop owned by "+role+"; drop role "+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("user", role)
	u.User, u.RawQuery = nil, q.Encode()
	return u.String()
}

// Whoever may read the outbox sees the mask; a role that may not read the lease
// is told so, and sees the rest.
func TestStatusShowsTheMask(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	reader := asRole(t, dsn, `grant select on all tables in schema public to %s`)
	conn := pgtest.Connect(t, dsn)
	eventually(t, "the mask is held", func() bool {
		// A slow machine may take longer than the lease lasts.
		pgtest.Exec(t, conn, `select setval('outbox_mask', (extract(epoch from clock_timestamp()) * 1000)::bigint + 4900)`)
		s, text := fullStatus(t, reader, "public")
		m := s.Wake.Mask
		if m.State != "held" || !strings.Contains(text, "masked by a dispatcher that polls, or died, for another ") {
			return false
		}
		if m.RemainingMS == nil || *m.RemainingMS < 1 || *m.RemainingMS > 4900 {
			t.Fatalf("%+v", m)
		}
		return true
	})
	pgtest.Exec(t, conn, `select setval('outbox_mask', 0)`)
	if s, text := fullStatus(t, reader, "public"); s.Wake.Mask.State != "open" || s.Wake.Mask.RemainingMS != nil {
		t.Errorf("%+v\n%s", s.Wake.Mask, text)
	}
	pgtest.Exec(t, conn, `revoke select on sequence outbox_mask from public`)
	s, text := fullStatus(t, reader, "public")
	if s.Wake.Mask.State != "unknown" || !strings.Contains(text, `grant select on sequence "public"."outbox_mask"`) || s.Wake.RoundTripMS == nil {
		t.Errorf("%+v\n%s", s.Wake, text)
	}
}

// A session that keeps everybody from notifying does not hold up the status.
func TestStatusWithBlockedNotifications(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{})
	dsn := server.DSN("postgres")
	pgtest.Migrate(t, dsn, "public")
	defer pgtest.BlockNotifications(t, server)()
	s, text := fullStatus(t, dsn, "public")
	if s.Wake.RoundTripMS != nil || !strings.Contains(text, "holds the lock that all notifications") {
		t.Errorf("%+v\n%s", s.Wake, text)
	}
}

// Each outbox of a database has its own dispatchers, whoever counts them: a
// role that may not see what the sessions of others run counts the same.
func TestStatusCountsItsOwnDispatchers(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	const polled, idle = "Übung 2", "nobody_here"
	var grants strings.Builder
	for _, schema := range []string{polled, idle, "public"} {
		pgtest.Migrate(t, dsn, schema)
		grants.WriteString(`grant usage on schema "` + schema + `" to %s; grant select on all tables in schema "` + schema + `" to %s;`)
	}
	reader := asRole(t, dsn, grants.String())
	awaitReady(t, start(t, runEnv(dsn, s), "run"))
	awaitReady(t, start(t, runEnv(dsn, s, "OUTBOX_SCHEMA="+polled), "run", "--wake=poll"))

	for who, dsn := range map[string]string{"owner": dsn, "reader": reader} {
		// Two programs are ready, so both have claimed, and the first listens
		// or is about to.
		eventually(t, who+" sees one that listens", func() bool {
			n, _ := statusOf(t, dsn, "public")
			return n.Listening == 1 && n.Connections > 0
		})
		n, text := statusOf(t, dsn, polled)
		if n.Listening != 0 || n.Connections == 0 || !strings.Contains(text, "none listens: --wake=poll, or the wake is broken") {
			t.Errorf("%s sees of the one that polls %+v:\n%s", who, n, text)
		}
		if n, text := statusOf(t, dsn, idle); n != (sessions{}) || !strings.Contains(text, "none connected") {
			t.Errorf("%s sees of an outbox without dispatchers %+v:\n%s", who, n, text)
		}
	}
}

func TestSessionName(t *testing.T) {
	names := map[string]string{}
	for _, base := range []string{applicationName, strings.Repeat("ü", 60)} {
		for _, schema := range []string{"public", "My Outbox-1", "Übung", "Ubung", strings.Repeat("s", 62) + "a", strings.Repeat("s", 62) + "b"} {
			for _, suffix := range []string{"", listenSuffix, statusSuffix, migrateSuffix} {
				name := sessionName(base, schema, suffix)
				if len(name) > maxSessionName || !strings.HasSuffix(name, suffix) {
					t.Errorf("%s: %d bytes", name, len(name))
				}
				if other, taken := names[name]; taken {
					t.Errorf("%q names %s and %s", name, schema, other)
				}
				names[name] = schema
			}
		}
	}
	if got := sessionName(applicationName, "public", listenSuffix); got != "outbox-dispatcher public listen" {
		t.Error(got)
	}
}

func TestShellWord(t *testing.T) {
	for s, want := range map[string]string{
		"public": "public", "my-app_1": "my-app_1", "": "''", "My Outbox": "'My Outbox'", "a'b": `'a'\''b'`, "$x": "'$x'", "Übung": "'Übung'",
	} {
		if got := shellWord(s); got != want {
			t.Errorf("%s becomes %s, want %s", s, got, want)
		}
	}
}
