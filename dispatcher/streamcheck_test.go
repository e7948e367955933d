package dispatcher

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestCaptures(t *testing.T) {
	for _, tt := range []struct {
		subject, prefix string
		want            bool
	}{
		{"outbox.>", "outbox", true},
		{"outbox.email", "outbox", true},
		{"outbox.*", "outbox", true},
		{">", "outbox", true},
		{"*.>", "outbox", true},
		{"*.email", "outbox", true},
		{"outbox", "outbox", false},
		{"outboxes.>", "outbox", false},
		{"a.b.>", "a.b", true},
		{"a.>", "a.b", true},
		{"a.b", "a.b", false},
		{"a.b.c", "a.b", true},
		{"a.c.>", "a.b", false},
	} {
		if got := captures([]string{"other", tt.subject}, tt.prefix); got != tt.want {
			t.Errorf("captures(%q, %q) = %v, want %v", tt.subject, tt.prefix, got, tt.want)
		}
	}
}

func TestCheckStream(t *testing.T) {
	sound := func() jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: "S", Subjects: []string{"outbox.>"}, Storage: jetstream.FileStorage,
			Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute,
		}
	}
	for _, tt := range []struct {
		check    string
		severity Severity
		change   func(*jetstream.StreamConfig)
	}{
		{"", "", func(*jetstream.StreamConfig) {}},
		{"no-ack", SeverityError, func(c *jetstream.StreamConfig) { c.NoAck = true }},
		{"sealed", SeverityError, func(c *jetstream.StreamConfig) { c.Sealed = true }},
		{"mirror", SeverityError, func(c *jetstream.StreamConfig) { c.Mirror = &jetstream.StreamSource{Name: "O"} }},
		{"exists", SeverityWarning, func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }},
		{"window", SeverityWarning, func(c *jetstream.StreamConfig) { c.Duplicates = 0 }},
		{"window", SeverityWarning, func(c *jetstream.StreamConfig) { c.Duplicates = 30 * time.Second }},
		{"retention", SeverityWarning, func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
		{"discard", SeverityWarning, func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 10 }},
		{"persist", SeverityWarning, func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }},
		{"storage", SeverityWarning, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		{"max-size", SeverityWarning, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }},
	} {
		c := sound()
		tt.change(&c)
		found := checkStreams([]*jetstream.StreamInfo{{Config: c}}, StreamCheck{
			Prefix: "outbox", Stream: "S", MaxPayload: 1 << 20, RetrySpan: 45 * time.Second,
		})
		switch {
		case tt.check == "" && len(found) > 0:
			t.Errorf("a sound stream: %v", found)
		case tt.check != "" && (len(found) != 1 || found[0].Check != tt.check || found[0].Severity != tt.severity):
			t.Errorf("%s: got %v", tt.check, found)
		}
	}
}
