package dispatcher

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

func TestMessage(t *testing.T) {
	created := time.Date(2026, 3, 4, 5, 6, 7, 89_000, time.FixedZone("", 3600))
	task := Task{
		ID: 42, Kind: "order.created", Body: []byte(`{"a":1}`), Attempt: 3, CreatedAt: created,
		rawHeaders: []byte(`{"traceparent": "00-ab-cd-01", "Nats-TTL": "1h"}`),
	}
	msg, err := message("outbox", "src1", &task)
	if err != nil {
		t.Fatal(err)
	}
	want := nats.Header{
		"Nats-Msg-Id":       {"src1.42." + strconv.FormatInt(created.UnixMicro(), 36)},
		"Outbox-Task-Id":    {"42"},
		"Outbox-Kind":       {"order.created"},
		"Outbox-Attempt":    {"3"},
		"Outbox-Created-At": {"2026-03-04T04:06:07.000089Z"},
		"traceparent":       {"00-ab-cd-01"},
		"Nats-TTL":          {"1h"},
	}
	if diff := cmp.Diff(want, msg.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if msg.Subject != "outbox.order.created" || string(msg.Data) != `{"a":1}` {
		t.Errorf("subject %q, data %q", msg.Subject, msg.Data)
	}
}

// The table's checks refuse all of these; the dispatcher must not rely on it.
func TestMessageRefuses(t *testing.T) {
	for name, task := range map[string]Task{
		"empty kind":         {Kind: ""},
		"wildcard":           {Kind: "a.*"},
		"full wildcard":      {Kind: "a.>"},
		"empty token":        {Kind: "a..b"},
		"leading dot":        {Kind: ".a"},
		"trailing dot":       {Kind: "a."},
		"dollar":             {Kind: "$JS.API.INFO"},
		"blank":              {Kind: "a b"},
		"line break":         {Kind: "a\r\nb"},
		"trailing newline":   {Kind: "a\n"},
		"NUL":                {Kind: "a\x00b"},
		"bidi override":      {Kind: "a\u202eb"},
		"invalid UTF-8":      {Kind: "a\xffb"},
		"5,000 bytes":        {Kind: strings.Repeat("k", 5000)},
		"header not object":  {Kind: "a", rawHeaders: []byte(`[1]`)},
		"header not string":  {Kind: "a", rawHeaders: []byte(`{"x": 1}`)},
		"header blank name":  {Kind: "a", rawHeaders: []byte(`{"x y": "1"}`)},
		"header colon":       {Kind: "a", rawHeaders: []byte(`{"x:y": "1"}`)},
		"header empty name":  {Kind: "a", rawHeaders: []byte(`{"": "1"}`)},
		"header line break":  {Kind: "a", rawHeaders: []byte(`{"x": "1\r\nNats-Rollup: all"}`)},
		"header id":          {Kind: "a", rawHeaders: []byte(`{"Nats-Msg-Id": "1"}`)},
		"header id, case":    {Kind: "a", rawHeaders: []byte(`{"nAtS-mSg-iD": "1"}`)},
		"header rollup":      {Kind: "a", rawHeaders: []byte(`{"Nats-Rollup": "all"}`)},
		"header expected":    {Kind: "a", rawHeaders: []byte(`{"Nats-Expected-Stream": "S"}`)},
		"header batch":       {Kind: "a", rawHeaders: []byte(`{"Nats-Batch-Id": "1"}`)},
		"header trace only":  {Kind: "a", rawHeaders: []byte(`{"Nats-Trace-Only": "1"}`)},
		"header of ours":     {Kind: "a", rawHeaders: []byte(`{"Outbox-Task-Id": "1"}`)},
		"header server only": {Kind: "a", rawHeaders: []byte(`{"Nats-Sequence": "1"}`)},
	} {
		if msg, err := message("outbox", "s", &task); err == nil {
			t.Errorf("%s: accepted as subject %q, headers %v", name, msg.Subject, msg.Header)
		}
	}
}

// Two tasks that differ in source, id or time must never share an id.
func TestMessageIDsDiffer(t *testing.T) {
	type key struct {
		source string
		id     int64
		at     int64
	}
	draw := rapid.Custom(func(t *rapid.T) key {
		return key{
			rapid.StringMatching(`[A-Za-z0-9_-]{1,8}`).Draw(t, "source"),
			rapid.Int64().Draw(t, "id"),
			rapid.Int64Range(-1<<50, 1<<50).Draw(t, "created"),
		}
	})
	id := func(k key) string {
		return messageID(k.source, &Task{ID: k.id, CreatedAt: time.UnixMicro(k.at)})
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if (a == b) != (id(a) == id(b)) {
			t.Fatalf("%+v and %+v have ids %q and %q", a, b, id(a), id(b))
		}
	})
}

func TestReasonText(t *testing.T) {
	long := strings.Repeat("é", 2000)
	for _, tt := range []struct{ in, want string }{
		{"plain", "plain"},
		{"nul\x00byte", "nul?byte"},
		{"bad\xffutf8", "bad?utf8"},
		{"line\nbreak\tand é", "line?break?and ?"},
		{long, strings.Repeat("?", 997) + "..."},
	} {
		got := reasonText(errorString(tt.in))
		if got != tt.want || len(got) > maxReason {
			t.Errorf("reasonText(%.20q) = %.20q of %d bytes, want %.20q", tt.in, got, len(got), tt.want)
		}
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }
