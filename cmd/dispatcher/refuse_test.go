package main

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// What waiting does not cure ends the program with one line that says what to
// do.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	pg := pgtest.OwnServer(t, pgserver.Options{TCP: true})
	for name, c := range map[string]struct {
		env  []string
		code int
		want []string
	}{
		"missing schema":   {[]string{"DATABASE_URL=" + pg.DSN("postgres")}, exitFailure, []string{`no outbox in schema "public"`, "dispatcher migrate up"}},
		"other schema":     {[]string{"DATABASE_URL=" + dsn, "OUTBOX_SCHEMA=My Outbox-1"}, exitFailure, []string{`"My Outbox-1"`, "dispatcher migrate up"}},
		"wrong password":   {[]string{"DATABASE_URL=" + wrongPassword(t, pg.TCPDSN("postgres"))}, exitFailure, []string{"password authentication failed"}},
		"missing database": {[]string{"DATABASE_URL=" + pg.DSN("nowhere")}, exitFailure, []string{`database "nowhere" does not exist`}},
		"bad credentials":  {[]string{"DATABASE_URL=" + dsn, "NATS_CREDS=/nonexistent"}, exitUsage, []string{"--nats-creds (from NATS_CREDS)"}},
		"taken port":       {[]string{"DATABASE_URL=" + dsn, "OUTBOX_HTTP=" + served(t, healthy())}, exitUsage, []string{"--http (from OUTBOX_HTTP)", "address already in use", "--http=off"}},
		"too small a pool": {[]string{"DATABASE_URL=" + dsn + "&pool_max_conns=2"}, exitUsage, []string{"--database-url (from DATABASE_URL): pool_max_conns is 2, and 4 workers need 6 connections", "--workers"}},
		"bad prefix":       {[]string{"DATABASE_URL=" + dsn, "OUTBOX_PREFIX=a..b"}, exitUsage, []string{`dispatcher: --prefix (from OUTBOX_PREFIX) "a..b" must be`}},
		"bad stream":       {[]string{"DATABASE_URL=" + dsn, "OUTBOX_STREAM=a.b"}, exitUsage, []string{`dispatcher: --stream (from OUTBOX_STREAM) "a.b" is not`}},
		"bad schema":       {[]string{"DATABASE_URL=" + dsn, "OUTBOX_SCHEMA=" + strings.Repeat("s", 64), "OUTBOX_PREFIX=."}, exitUsage, []string{"dispatcher: --schema (from OUTBOX_SCHEMA)", "at most 63 bytes; --prefix (from OUTBOX_PREFIX)"}},
		"other URL":        {[]string{"DATABASE_URL=mysql://u:canary@h/d"}, exitUsage, []string{"--database-url (from DATABASE_URL): a URL must begin with postgres:// or postgresql://"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, append([]string{"OUTBOX_HTTP=off", "NATS_URL=nats://127.0.0.1:1"}, c.env...), "run")
			if code := p.wait(t); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			var last string
			for line := range strings.Lines(p.text()) {
				last = line
			}
			if !strings.HasPrefix(last, "dispatcher: ") {
				t.Errorf("the last line is %q", last)
			}
			for _, want := range c.want {
				if !strings.Contains(last, want) {
					t.Errorf("%q is not in %q", want, last)
				}
			}
		})
	}
}

func TestErrorIsJSONWithJSONLogs(t *testing.T) {
	t.Parallel()
	p := start(t, []string{"DATABASE_URL=" + pgtest.NewDB(t), "OUTBOX_SCHEMA=nowhere", "OUTBOX_HTTP=off", "OUTBOX_LOG_FORMAT=json"}, "run")
	if code := p.wait(t); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(p.text()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	if !strings.Contains(p.text(), `"msg":"dispatcher failed"`) {
		t.Error("no line tells the failure")
	}
}

// wrongPassword replaces the password of a URL.
func wrongPassword(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), "canary-wrong-password")
	return u.String()
}
