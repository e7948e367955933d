package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestMisspeltVariables(t *testing.T) {
	k, err := newParser(&cli{}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	newEnvironment([]string{
		"OUTBOX_BACTH=secret", "OUTBOX_NATS_URLS=secret", "OUTBOX_SOMETHING_ELSE=secret", "OUTBOX_JSON=1",
		"OUTBOX_BATCH=7", "OUTBOX_LOCK_TIMEOUT=1s", "BATCH=secret", "NATS_URL=secret",
	}).warnOfMisspelt(k.Model, slog.New(slog.NewTextHandler(&log, nil)))
	var got []string
	for line := range strings.Lines(log.String()) {
		_, variable, _ := strings.Cut(strings.TrimSpace(line), "variable=")
		got = append(got, variable)
	}
	want := "OUTBOX_BACTH nearest=OUTBOX_BATCH, OUTBOX_JSON, OUTBOX_NATS_URLS nearest=OUTBOX_NATS_URL, OUTBOX_SOMETHING_ELSE"
	if strings.Join(got, ", ") != want || strings.Contains(log.String(), "secret") {
		t.Errorf("got %q, want %q:\n%s", got, want, log.String())
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 2}, {"abc", "abcd", 1}, {"kitten", "sitting", 3}} {
		if got := edits(c.a, c.b); got != c.want {
			t.Errorf("%q to %q takes %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
