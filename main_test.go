package outbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// oddSchemas are names that break whoever does not quote.
var oddSchemas = []string{
	"My Outbox-1", `qu"o'te`, `back\slash'`, "$do$; select 1; $$", "select", "größe 😀", "outbox", strings.Repeat("x", 63), "a.b", "-- c\nd", "%s%d",
}

// eventually waits for another process to reach a state that nothing announces.
func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !reached() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited a minute: %s", what)
		}
	}
}

// tool runs a client program of PostgreSQL and returns what it prints.
func tool(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Server(t).Program(name), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

func psql(t *testing.T, dsn, sql string) {
	t.Helper()
	tool(t, sql, "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-f", "-", dsn)
}

func migrate(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Schema: schema}); err != nil {
		t.Fatal(err)
	}
}

// searchPath makes the connection find the outbox of the schema.
func searchPath(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	pgtest.Exec(t, conn, "select set_config('search_path', $1, false)", pgx.Identifier{schema}.Sanitize())
}

// channel is the documented name: stable, because listeners in other languages
// compute it too.
func channel(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "outbox_" + hex.EncodeToString(sum[:])[:32]
}

// listener counts the notifications of one schema's outbox.
type listener struct {
	conn    *pgx.Conn
	channel string
}

func listen(t *testing.T, dsn, schema string) *listener {
	t.Helper()
	l := &listener{conn: pgtest.Connect(t, dsn), channel: channel(schema)}
	pgtest.Exec(t, l.conn, "listen "+pgx.Identifier{l.channel}.Sanitize())
	return l
}

// wakes returns how many notifications came since the last call. PostgreSQL
// delivers in the order of commits, so one of our own marks the end.
func (l *listener) wakes(t *testing.T) int {
	t.Helper()
	pgtest.Exec(t, l.conn, "select pg_notify($1, 'end')", l.channel)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n := 0; ; n++ {
		got, err := l.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got.Payload == "end" {
			return n
		}
		if got.Payload != "" {
			t.Errorf("payload %q, want a constant one", got.Payload)
		}
	}
}
