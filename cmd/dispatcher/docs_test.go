package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
)

const (
	configBegin = "<!-- config:begin -->\n"
	configEnd   = "<!-- config:end -->"
)

// The README's configuration table is generated. To renew it:
//
//	UPDATE_README=1 go test ./cmd/dispatcher -run TestReadmeConfiguration
func TestReadmeConfiguration(t *testing.T) {
	const file = "../../README.md"
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), configBegin)
	have, after, ok2 := strings.Cut(rest, configEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no block between %q and %q", file, configBegin, configEnd)
	}
	k, err := newParser(&cli{}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := "\n" + configTable(k.Model)
	if have == want {
		return
	}
	if os.Getenv("UPDATE_README") != "" {
		if err := os.WriteFile(file, []byte(before+configBegin+want+configEnd+after), 0o644); err != nil { // #nosec G306 -- a public file
			t.Fatal(err)
		}
		return
	}
	t.Errorf("the configuration table of %s is old: run this test with UPDATE_README=1", file)
}

// Every flag explains itself.
func TestEveryFlagHasHelp(t *testing.T) {
	for _, flag := range runFlags(t) {
		if flag.Help == "" || flag.Group == nil || !strings.HasSuffix(flag.Help, ".") {
			t.Errorf("--%s: group %v, help %q", flag.Name, flag.Group, flag.Help)
		}
	}
}

func TestHelpShowsVariablesAndNoValues(t *testing.T) {
	const canary = "canary-of-the-help"
	vars := map[string]string{}
	for _, flag := range runFlags(t) {
		for _, name := range variables(flag) {
			vars[name] = canary
		}
	}
	var out bytes.Buffer
	code := run(t.Context(), []string{"run", "--help"}, environ(vars), &out, &out)
	if code != exitOK {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"--batch=1000", "(1 to 10000, $OUTBOX_BATCH)", "$OUTBOX_NATS_URL, $NATS_URL", "Dispatching", `--http="127.0.0.1:8080"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(text, canary) {
		t.Error("the help shows the value of a variable")
	}
}
