package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// The canaries of these tests all begin like this.
const canary = "canary-"

func expectNoSecret(t *testing.T, where, text string, secrets ...string) {
	t.Helper()
	for _, secret := range append(secrets, canary) {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s shows a secret: %.300s", where, text[max(0, i-150):])
		}
	}
}

// A program that goes through all sorts of trouble, at the most talkative log
// level, shows neither its secrets nor what the tasks hold.
func TestNoSecretInTheOutputOfARun(t *testing.T) {
	t.Parallel()
	pg := pgtest.OwnServer(t, pgserver.Options{TCP: true})
	dsn := pg.TCPDSN("postgres")
	pgtest.Migrate(t, dsn, "public")
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()

	const users = `authorization { users = [ { user: ann, password: "canary-of-nats" } ] }`
	s := natstest.Listening(t, natstest.WithConfig(users), natstest.WithClient(nats.UserInfo("ann", "canary-of-nats")))
	p := start(t, []string{
		"DATABASE_URL=" + dsn, "NATS_URL=nats://ann:canary-of-nats@" + s.Addr(), "OUTBOX_HTTP=127.0.0.1:0",
		"OUTBOX_CREATE_STREAM=true", "OUTBOX_LOG_LEVEL=debug", "OUTBOX_MAX_ATTEMPTS=1",
	}, "run")
	awaitReady(t, p)
	addr := p.httpAddr(t)
	look := func(when string) {
		t.Helper()
		for _, path := range []string{"/readyz", "/metrics", "/livez"} {
			expectNoSecret(t, path+" "+when, fetch(t, addr, path), password)
		}
	}
	conn := pgtest.Connect(t, dsn)
	pgtest.Exec(t, conn, `insert into outbox (kind, payload, headers) values
		('email', '{"to": "canary-of-a-payload"}', '{"X-Secret": "canary-of-a-header"}')`)
	pgtest.Exec(t, conn, `insert into outbox (kind, body) values ('large', convert_to('canary-of-a-body' || repeat('x', 2000000), 'UTF8'))`)
	eventually(t, "one is sent, the large one dead", func() bool {
		return pgtest.Value[int](t, conn, "select count(*) from outbox where sent_at is not null or dead_at is not null") == 2
	})
	look("with a dead letter")
	expectNoSecret(t, "last_error", pgtest.Value[string](t, conn, "select last_error from outbox where dead_at is not null"), password)

	s.Stop(t)
	p.await(t, "cannot connect to NATS")
	look("without a broker")
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	// Nothing is due for a while, so the scrape is what touches the database.
	look("without a database")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	awaitReady(t, p)
	for _, args := range [][]string{{"status"}, {"status", "--json"}, {"migrate", "status"}, {"migrate", "up"}} {
		q := start(t, []string{"DATABASE_URL=" + dsn}, args...)
		if code := q.wait(t); code != 0 {
			t.Errorf("%v: exit code %d", args, code)
		}
		expectNoSecret(t, strings.Join(args, " "), q.text(), password)
	}
	p.stop(t)
	expectNoSecret(t, "the log", p.text(), password)
}

func fetch(t *testing.T, addr, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Nor does one that does not get that far.
func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{TCP: true})
	dsn := pgtest.NewDB(t)
	s := natstest.Listening(t, natstest.WithConfig(`authorization { token: "other" }`))
	seed, _ := nkeyUser(t)
	seedText, err := os.ReadFile(seed)
	if err != nil {
		t.Fatal(err)
	}
	secretSeed := strings.TrimSpace(string(seedText))
	type env = []string
	for name, c := range map[string]struct {
		env  env
		args []string
	}{
		"help":                      {env{"DATABASE_URL=postgres://u:canary-1234@h/db", "NATS_TOKEN=canary-1234", "OUTBOX_PREFIX=canary-1234"}, []string{"run", "--help"}},
		"wrong database password":   {env{"DATABASE_URL=" + wrongPassword(t, server.TCPDSN("postgres"))}, []string{"run"}},
		"the same, status":          {env{"DATABASE_URL=" + wrongPassword(t, server.TCPDSN("postgres"))}, []string{"status"}},
		"the same, migrate":         {env{"DATABASE_URL=" + wrongPassword(t, server.TCPDSN("postgres"))}, []string{"migrate", "up"}},
		"unknown host":              {env{"DATABASE_URL=postgres://u:canary-1234@nowhere.invalid/db"}, []string{"status"}},
		"password in a flag":        {nil, []string{"status", "--database-url=postgres://u:canary-1234@127.0.0.1:1/db"}},
		"DSN that is none":          {env{"DATABASE_URL=postgres://u:canary-/1234@h/db"}, []string{"run"}},
		"DSN with a bad escape":     {env{"DATABASE_URL=postgres://u:canary-%zz@h/db"}, []string{"run"}},
		"DSN as an argument":        {nil, []string{"run", "postgres://u:canary-1234@h/db"}},
		"DSN as a command":          {nil, []string{"postgres://u:canary-1234@h/db"}},
		"secret for the wrong flag": {nil, []string{"run", "--batch", "postgres://u:canary-1234@h/db"}},
		"the same with =":           {nil, []string{"run", "--batch=postgres://u:canary-1234@h/db"}},
		"secret for an unknown":     {nil, []string{"run", "--nats-pasword=canary-1234"}},
		"the same apart":            {nil, []string{"run", "--nats-pasword", "canary-1234"}},
		"half a secret":             {nil, []string{"run", "--nats-password", "x", "canary-1234"}},
		"password without user":     {env{"DATABASE_URL=" + dsn, "NATS_PASSWORD=canary-1234"}, []string{"run"}},
		"NATS URL":                  {env{"DATABASE_URL=" + dsn, "NATS_URL=nats://u:canary-%zz@h"}, []string{"run"}},
		"NATS URL and token":        {env{"DATABASE_URL=" + dsn, "NATS_URL=nats://canary-1234@h", "NATS_TOKEN=canary-5678"}, []string{"run"}},
		"NATS token file":           {env{"DATABASE_URL=" + dsn, "OUTBOX_NATS_TOKEN_FILE=" + writeFile(t, "canary-1234"), "NATS_USER=u"}, []string{"run"}},
		"seed as credentials":       {env{"DATABASE_URL=" + dsn, "NATS_CREDS=" + seed}, []string{"run"}},
		"garbage as seed":           {env{"DATABASE_URL=" + dsn, "NATS_NKEY=" + writeFile(t, "canary-1234")}, []string{"run"}},
		"listen URL":                {env{"DATABASE_URL=" + dsn, "OUTBOX_LISTEN_URL=postgres://u:canary-/@h/db"}, []string{"run"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.env, c.args...)
			p.wait(t)
			expectNoSecret(t, "the output", p.text(), secretSeed)
			if p.text() == "" {
				t.Error("no word about what is wrong")
			}
		})
	}
	t.Run("wrong NATS token", func(t *testing.T) {
		t.Parallel()
		p := start(t, []string{"DATABASE_URL=" + dsn, "NATS_URL=nats://canary-1234@" + s.Addr(), "OUTBOX_HTTP=127.0.0.1:0", "OUTBOX_LOG_LEVEL=debug"}, "run")
		p.await(t, "Authorization Violation")
		expectNoSecret(t, "readyz", fetch(t, p.httpAddr(t), "/readyz"))
		p.stop(t)
		expectNoSecret(t, "the log", p.text())
	})
}
