package main

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func statusOf(t *testing.T, dsn, schema string) (sessions, string) {
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
	return s.Dispatchers, text.String()
}

// Each outbox of a database has its own dispatchers, whoever counts them: a
// role that may not see what the sessions of others run counts the same.
func TestStatusCountsItsOwnDispatchers(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	const polled, idle = "Übung 2", "nobody_here"
	admin := pgtest.Connect(t, dsn)
	role := "status_" + pgtest.Value[string](t, admin, "select current_database()::text")
	pgtest.Exec(t, admin, "create role "+role+" login")
	defer pgtest.Exec(t, admin, "drop owned by "+role+"; drop role "+role)
	for _, schema := range []string{polled, idle, "public"} {
		pgtest.Migrate(t, dsn, schema)
		pgtest.Exec(t, admin, `grant usage on schema "`+schema+`" to `+role+`; grant select on all tables in schema "`+schema+`" to `+role)
	}
	awaitReady(t, start(t, runEnv(dsn, s), "run"))
	awaitReady(t, start(t, runEnv(dsn, s, "OUTBOX_SCHEMA="+polled), "run", "--wake=poll"))

	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("user", role)
	u.User, u.RawQuery = nil, q.Encode()
	for who, dsn := range map[string]string{"owner": dsn, "reader": u.String()} {
		// Two programs are ready, so both have claimed, and the first listens
		// or is about to.
		eventually(t, who+" sees one that listens", func() bool {
			n, _ := statusOf(t, dsn, "public")
			return n.Listening == 1 && n.Connections > 0
		})
		n, text := statusOf(t, dsn, polled)
		if n.Listening != 0 || n.Connections == 0 || !strings.Contains(text, "none listens, as with --wake=poll") {
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
