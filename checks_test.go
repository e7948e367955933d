package outbox_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

const mebibytes64 = 64 << 20

// refusal runs a statement that must fail, and returns the server's error.
func refusal(t *testing.T, conn *pgx.Conn, sql string, args ...any) *pgconn.PgError {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		t.Fatalf("%.100s: error = %v, want a refusal", sql, err)
	}
	return pgErr
}

// columns are the values of one row; what is left out takes its default, except
// that kind and payload are good ones.
type columns map[string]string

func (c columns) insert() string {
	full := columns{"kind": "'a'", "payload": "'{}'"}
	if _, ok := c["body"]; ok {
		delete(full, "payload")
	}
	maps.Copy(full, c)
	var names, values []string
	for name, value := range full {
		names, values = append(names, name), append(values, value)
	}
	return fmt.Sprintf("insert into outbox (%s) values (%s)", strings.Join(names, ", "), strings.Join(values, ", "))
}

func text(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func TestChecksRefuse(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	manyHeaders := `(select jsonb_object_agg('h' || i, '') from generate_series(1, 65) i)`
	numberBomb := `(select jsonb_agg('1e131071'::jsonb) from generate_series(1, 520))`
	for _, c := range []struct {
		row        columns
		constraint string
		message    string
	}{
		{columns{"kind": "''"}, "outbox_kind", `kind '' is not usable in a NATS subject (0 bytes)`},
		{columns{"kind": "'a b'"}, "outbox_kind", `kind 'a b' is not`},
		{columns{"kind": "'a.*'"}, "outbox_kind", `kind 'a.*' is not`},
		{columns{"kind": "'a.>'"}, "outbox_kind", `kind 'a.>' is not`},
		{columns{"kind": "'.a'"}, "outbox_kind", `kind '.a' is not`},
		{columns{"kind": "'a.'"}, "outbox_kind", `kind 'a.' is not`},
		{columns{"kind": "'a..b'"}, "outbox_kind", `kind 'a..b' is not`},
		{columns{"kind": "'$JS.API.STREAM.DELETE.X'"}, "outbox_kind", `kind '$JS.API`},
		{columns{"kind": `E'a\nb'`}, "outbox_kind", "kind 'a\nb' is not"},
		{columns{"kind": `E'a\n'`}, "outbox_kind", "kind 'a\n' is not"},
		{columns{"kind": `E'a\tb'`}, "outbox_kind", "is not usable"},
		{columns{"kind": "'größe'"}, "outbox_kind", `kind 'größe' is not`},
		{columns{"kind": text(strings.Repeat("k", 191))}, "outbox_kind", "(191 bytes)"},
		{columns{"kind": text(strings.Repeat("k", 5000))}, "outbox_kind", "(5000 bytes)"},
		{columns{"payload": "null"}, "outbox_payload_or_body", "payload and body are both null"},
		{columns{"payload": "'1'", "body": "'1'"}, "outbox_payload_or_body", "payload and body are both set"},
		{columns{"body": fmt.Sprintf("repeat('x', %d)::bytea", mebibytes64+1)}, "outbox_body_size", "body is too large (67108865 bytes)"},
		{columns{"payload": numberBomb}, "outbox_payload_size", "payload is too large (68158480 bytes as text)"},
		{columns{"headers": `'["a"]'`}, "outbox_headers", "headers are a JSON array"},
		{columns{"headers": `'"a"'`}, "outbox_headers", "headers are a JSON string"},
		{columns{"headers": `'null'`}, "outbox_headers", "headers are a JSON null"},
		{columns{"headers": `'{"a": 1}'`}, "outbox_headers", `the value of header "a" is not a string`},
		{columns{"headers": `'{"a": null}'`}, "outbox_headers", `the value of header "a" is not a string`},
		{columns{"headers": `'{"b": "", "a": ["x"]}'`}, "outbox_headers", `the value of header "a" is not a string`},
		{columns{"headers": `'{"a": {"b": "c"}}'`}, "outbox_headers", `the value of header "a" is not a string`},
		{columns{"headers": `'{"a": []}'`}, "outbox_headers", `the value of header "a" is not a string`},
		{columns{"headers": manyHeaders}, "outbox_headers", "there are too many headers (65)"},
		{columns{"headers": `jsonb_build_object('a', repeat('x', 16384 - 8))`}, "outbox_headers", "headers are too large (16385 bytes)"},
		{columns{"ordering_key": "''"}, "outbox_ordering_key", "ordering_key '' has 0 bytes"},
		{columns{"ordering_key": text(strings.Repeat("é", 128))}, "outbox_ordering_key", "has 256 bytes"},
		{columns{"send_after": "'infinity'"}, "outbox_send_after", "send_after 'infinity' is not a usable time"},
		{columns{"send_after": "'-infinity'"}, "outbox_send_after", "send_after '-infinity' is not"},
		{columns{"send_after": "'10000-01-01 00:00:00+00'"}, "outbox_send_after", "is not a usable time"},
		{columns{"send_after": "'0001-12-31 23:59:59+00 BC'"}, "outbox_send_after", "is not a usable time"},
		{columns{"created_at": "'infinity'"}, "outbox_created_at", "created_at 'infinity' is not"},
		{columns{"created_at": "'-infinity'"}, "outbox_created_at", "created_at '-infinity' is not"},
		{columns{"sent_at": "now()", "dead_at": "now()"}, "outbox_state", "do not go together"},
		{columns{"sent_at": "'infinity'"}, "outbox_state", "sent_at 'infinity' and dead_at NULL do not"},
		{columns{"dead_at": "'-infinity'"}, "outbox_state", "do not go together"},
		{columns{"attempts": "-1"}, "outbox_attempts", "attempts -1 is negative"},
		{columns{"last_error": text(strings.Repeat("x", 4097))}, "outbox_last_error", "last_error is too long (4097 bytes)"},
	} {
		got := refusal(t, conn, c.row.insert())
		checkRefusal(t, got, c.constraint, c.message)
	}
	if n := pgtest.Value[int](t, conn, "select count(*) from outbox"); n != 0 {
		t.Errorf("%d bad rows got in", n)
	}
}

func checkRefusal(t *testing.T, got *pgconn.PgError, constraint, message string) {
	t.Helper()
	if got.Code != "23514" || got.ConstraintName != constraint || got.TableName != "outbox" || got.SchemaName != "public" {
		t.Errorf("%v: constraint %q of table %q.%q, want %q of public.outbox", got, got.ConstraintName, got.SchemaName, got.TableName, constraint)
	}
	if !strings.Contains(got.Message, message) {
		t.Errorf("%s: message %q, want %q", constraint, got.Message, message)
	}
	if len(got.Message) > 250 {
		t.Errorf("%s: the message repeats %d bytes of the input", constraint, len(got.Message))
	}
	if got.Detail == "" || got.Hint == "" || got.ColumnName == "" {
		t.Errorf("%s: detail %q, hint %q, column %q: none may be empty", constraint, got.Detail, got.Hint, got.ColumnName)
	}
	if strings.Contains(got.Detail, "Failing row") {
		t.Errorf("%s: the detail shows the row", constraint)
	}
}

func TestChecksAcceptTheLimits(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, row := range []columns{
		{"kind": "'a'"},
		{"kind": "'Order.created_v2.eu-west.0'"},
		{"kind": text(strings.Repeat("k", 190))},
		{"payload": "'null'"},
		{"payload": `'"ü 😀"'`},
		{"payload": "'1e131071'"},
		{"body": "''"},
		{"body": fmt.Sprintf("repeat('x', %d)::bytea", mebibytes64)},
		{"headers": "null"},
		{"headers": "'{}'"},
		{"headers": `(select jsonb_object_agg('h' || i, '') from generate_series(1, 64) i)`},
		{"headers": `jsonb_build_object('a', repeat('x', 16384 - 9))`},
		{"ordering_key": "' '"},
		{"ordering_key": text(strings.Repeat("k", 255))},
		{"send_after": "'9999-12-31 23:59:59.999999+00'"},
		{"send_after": "'0001-01-01 00:00:00+00'"},
		{"sent_at": "now()"},
		{"dead_at": "now()", "last_error": text(strings.Repeat("x", 4096))},
		{"attempts": "2147483647"},
	} {
		if _, err := conn.Exec(t.Context(), row.insert()); err != nil {
			t.Errorf("%.200v: %v", row, err)
		}
	}
}

// The dispatcher's updates must pass whatever came in, and rows that are being
// tried must not be judged anew each time.
func TestMarkingPassesTheChecks(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	pgtest.Exec(t, conn, columns{"headers": `'{"traceparent": "00-1"}'`}.insert())
	for _, sql := range []string{
		`update outbox set sent_at = now(), attempts = attempts + 1`,
		`update outbox set sent_at = null, send_after = now() + interval '1 s', last_error = 'refused'`,
		`update outbox set dead_at = now()`,
		`update outbox set dead_at = null, attempts = 0, send_after = now(), created_at = created_at`,
	} {
		pgtest.Exec(t, conn, sql)
	}
	if err := refusal(t, conn, `update outbox set kind = 'a b'`); err.ConstraintName != "outbox_kind" {
		t.Errorf("an update to a bad kind was refused by %q", err.ConstraintName)
	}
}

func TestSourceIsOneGoodRow(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	if name := pgtest.Value[string](t, conn, `select name from outbox_source`); len(name) != 16 || strings.Trim(name, "0123456789abcdef") != "" {
		t.Errorf("default source name %q, want 16 hex digits", name)
	}
	pgtest.Exec(t, conn, `update outbox_source set name = 'eu-west_1'`)
	for sql, constraint := range map[string]string{
		`insert into outbox_source default values`:            "outbox_source_pkey",
		`insert into outbox_source (only_row) values (false)`: "outbox_source_only_row",
		`update outbox_source set name = ''`:                  "outbox_source_name",
		`update outbox_source set name = 'a.b'`:               "outbox_source_name",
		`update outbox_source set name = 'ä'`:                 "outbox_source_name",
		`update outbox_source set name = repeat('x', 33)`:     "outbox_source_name",
		`update outbox_source set name = E'a\n'`:              "outbox_source_name",
	} {
		if err := refusal(t, conn, sql); err.ConstraintName != constraint {
			t.Errorf("%s: refused by %q, want %q", sql, err.ConstraintName, constraint)
		}
	}
	second := pgtest.Connect(t, pgtest.NewEmptyDB(t))
	migrate(t, second, "a")
	migrate(t, second, "b")
	if pgtest.Value[bool](t, second, `select a.name = b.name from a.outbox_source a, b.outbox_source b`) {
		t.Error("two outboxes have the same default source name")
	}
}
