package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// draws runs the program on a report and returns the folder of the pictures.
func draws(t *testing.T, text string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "charts")
	return out, run([]string{path, out}, io.Discard)
}

func TestCharts(t *testing.T) {
	t.Parallel()
	dir, err := draws(t, `{"scenario": "x", "started": "2026-12-04T01:02:03Z", "machine": {"cpu": "a CPU", "cores": 2}, "charts": [
		{"name": "lines", "title": "Some lines", "x": "tasks/s", "y": "ms", "log_x": true, "log_y": true,
		 "lines": [{"name": "p50", "points": [[10, 0.5], [1000, 20]]}, {"name": "p99", "points": [[10, 1], [1000, 90]]}]},
		{"name": "bars", "title": "Some bars", "y": "ms", "log_y": true, "groups": ["a", "b"],
		 "bars": [{"name": "p50", "values": [0.6, 504]}, {"name": "p99", "values": [1.7, 1001]}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"lines.svg": {"Some lines", "p50", "p99", "tasks/s", "a CPU, 2 cores, 2026-12-04", "1000"},
		"bars.svg":  {"Some bars", "p50", "p99", "504", "1001", "a CPU"},
	} {
		text := texts(t, filepath.Join(dir, name))
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s does not say %q: %s", name, part, text)
			}
		}
	}
}

// texts are those of a picture; it fails the test if the file is no XML.
func texts(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path) // #nosec G304 -- a folder of the test's
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all strings.Builder
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if text, ok := token.(xml.CharData); ok {
			all.WriteString(strings.TrimSpace(string(text)) + "\n")
		}
	}
}

func TestWhatCannotBeDrawnIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ report, want string }{
		"no charts":       {`{"scenario": "idle"}`, `"idle" draws none`},
		"no report":       {`x`, "no report of the benchmark"},
		"zero on log":     {`{"charts": [{"name": "a", "log_y": true, "groups": ["g"], "bars": [{"name": "b", "values": [0]}]}]}`, "above 0"},
		"zero on log, xy": {`{"charts": [{"name": "a", "log_x": true, "lines": [{"name": "b", "points": [[0, 1]]}]}]}`, "above 0"},
		"missing value":   {`{"charts": [{"name": "a", "groups": ["g", "h"], "bars": [{"name": "b", "values": [1]}]}]}`, "1 values for 2 groups"},
		"another folder":  {`{"charts": [{"name": "../a"}]}`, "no name of a file"},
		"nothing":         {`{"charts": [{"name": "a"}]}`, "neither lines nor bars"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := draws(t, c.report); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error %v does not tell of %q", err, c.want)
			}
		})
	}
	if err := run([]string{"one"}, io.Discard); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("one argument: %v", err)
	}
}
