package outbox_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

const insertHeaders = `insert into outbox (kind, body, headers) values ('a', '', $1)`

func headersJSON(t *testing.T, name, value string) string {
	t.Helper()
	b, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHeaderNames(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, name := range []string{
		"traceparent", "tracestate", "baggage", "Content-Type", "X-Tenant", "x", "0", "ce-id", "a.b_c~d", "!#$%&'*+-.^_`|~",
		"Nats-TTL", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-Source", "Nats-Schedule-TTL", "Nats-Schedule-Time-Zone",
		"Nats-Trace-Dest", "Nats-Something-New", "Orig-Nats-Msg-Id", "Outboxes", "Status-Code", "My-Status", "Descriptions",
		strings.Repeat("h", 128),
	} {
		if _, err := conn.Exec(t.Context(), insertHeaders, headersJSON(t, name, "v")); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{
		"", " ", "a b", " a", "a ", "a:b", "a\tb", "a\nb", "a\r\nNats-Rollup", "a\n", "größe", "a\u00a0b", "a\x7f", "a/b", "(a)", "a,b", `a"b`, `a\b`, "@", "[a]", "{a}", "a=b", "a;b", "a?", "<a>",
		strings.Repeat("h", 129), strings.Repeat("h", 5000),
	} {
		err := refusal(t, conn, insertHeaders, headersJSON(t, name, "v"))
		checkRefusal(t, err, "outbox_header_names", "header name ")
	}
	// The first check of a long list of good names must not hide a long one.
	long := `{"a": "", "` + strings.Repeat("b", 129) + `": "", "c": ""}`
	checkRefusal(t, refusal(t, conn, insertHeaders, long), "outbox_header_names", "bbb")
}

func TestReservedHeaderNames(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, name := range []string{
		"Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
		"Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Msg-Id", "Nats-Expected-",
		"Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Trace-Only", "Nats-Incr", "Nats-Rollup",
		"Nats-Scheduler", "Nats-Schedule-Next", "Nats-Marker-Reason", "Nats-Stream", "Nats-Stream-Source", "Nats-Sequence",
		"Nats-Subject", "Nats-Time-Stamp", "Nats-Last-Sequence", "Nats-Num-Pending", "Nats-Response-Type",
		"Nats-Required-Api-Level", "Status", "Description", "Outbox-Task-Id", "Outbox-Kind", "Outbox-", "Outbox-Anything",
	} {
		for _, spelled := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			err := refusal(t, conn, insertHeaders, headersJSON(t, spelled, "v"))
			checkRefusal(t, err, "outbox_header_reserved", `header name "`+spelled+`" is reserved`)
		}
	}
	err := refusal(t, conn, insertHeaders, `{"a": "", "Nats-Rollup": "all", "z": ""}`)
	checkRefusal(t, err, "outbox_header_reserved", `"Nats-Rollup"`)
}

func TestHeaderValues(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, value := range []string{
		"", " ", "v", "a\tb", `"quoted"`, `back\slash`, `\n`, `\u000a`, "größe", "😀", "\u00a0", "\u2028", "a: b", strings.Repeat("v", 10_000),
	} {
		if _, err := conn.Exec(t.Context(), insertHeaders, headersJSON(t, "h", value)); err != nil {
			t.Errorf("%.80q: %v", value, err)
		}
	}
	for _, value := range []string{
		"a\nb", "a\rb", "a\r\nNats-Rollup: all", "\n", "a\n", "\x01", "\x08", "\x0b", "\x1b[31m", "\x1f", "\x7f", "\u0080", "\u0085", "\u009f",
	} {
		err := refusal(t, conn, insertHeaders, headersJSON(t, "h", value))
		checkRefusal(t, err, "outbox_header_values", `the value of header "h" has a line break`)
	}
	if err := refusal(t, conn, insertHeaders, `{"h": "\u0000"}`); err.Code != "22P05" {
		t.Errorf("NUL in a header: %v, want PostgreSQL's own refusal", err)
	}
}
