package faults

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// plant is a bug, and the scene in which the checker must notice it.
type plant struct {
	name  string
	edits []edit
	scene func(t *testing.T, binary string) Verdict
	want  Class
}

// edit changes one place of the dispatcher.
type edit struct{ file, old, new string }

var plants = []plant{
	{"commit without undo", []edit{{"settle.go", "if len(u.ids) > 0 {\n\t\tfailpoint", "if false {\n\t\tfailpoint"}}, sceneFullStream, Lost},
	{"ack not awaited", []edit{{"publish.go", "results[i] = p.await(ctx, f, &tasks[i], &w)", "results[i] = Result{Acked: time.Now()}"}}, sceneBrokerDies, Lost},
	{"id without time part", []edit{{"message.go", "return strconv.AppendInt(b, t.CreatedAt.UnixMicro(), 36)", "return append(b, '0')"}}, sceneIDsComeBack, Lost},
	{"sweep off", []edit{
		{"agenda.go", "a.sweep = now.Add(interval)", "a.sweep = now.Add(24 * time.Hour)"},
		{"loop.go", "if soon := now.Add(l.interval());", "if soon := now.Add(24 * time.Hour);"},
	}, sceneNoTrigger, Leftover},
	{"attempts counted in an outage", []edit{{"deliver.go", "u.add(t.ID, false,", "u.add(t.ID, true,"}}, sceneLostAnswers, SpentAttempt},
	{"cursor without full pass", []edit{{"loop.go", "l.pass(false)", "l.pass(true)"}}, sceneLateCommit, Leftover},
	{"client retries on", []edit{
		{"nats.go", "\t\tnats.ReconnectBufSize(-1),\n", ""},
		{"publish.go", "jetstream.WithRetryAttempts(0), ", ""},
	}, sceneGhosts, DuplicateOutside},
	{"session timeout off", []edit{
		{"claimsql.go", "timeout', $9::text", "timeout', left($9::text, 0) || '0'"},
		{"claimsql.go", "timeout', $10::text", "timeout', left($10::text, 0) || '0'"},
	}, sceneFrozenHolder, Leftover},
	{"last_error unsanitised", []edit{{"settle.go", "if r < ' ' || r > '~' {", "if false {"}}, sceneOddReason, Leftover},
	{"window ignored", []edit{{"deliver.go", "const heldBack = 2 * time.Second", "const heldBack = 30 * time.Second"}}, sceneLostAnswers, DuplicateOutside},
}

// TestPlantedBugs builds the daemon with one bug at a time and has the checker
// find it, and nothing in the same scene without the bug.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if v := p.scene(t, p.build(t)); v.Counts[p.want] == 0 {
				t.Errorf("the bug was not found: no %q among the findings %v", p.want, v.Counts)
			} else {
				t.Logf("found: %v", v.Findings)
			}
		})
		t.Run("without "+p.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range p.scene(t, binary).Findings {
				t.Error(f)
			}
		})
	}
}

// build makes a daemon with the bug in it. The sources stay as they are: the
// compiler is told to read others in their place.
func (p *plant) build(t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	texts := map[string]string{}
	for _, e := range p.edits {
		path, err := filepath.Abs(filepath.Join("../dispatcher", e.file))
		if err != nil {
			t.Fatal(err)
		}
		if texts[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], e.old); n != 1 {
			t.Fatalf("%s has %d places of %q, where the bug belongs into the only one", e.file, n, e.old)
		}
		texts[path] = strings.Replace(texts[path], e.old, e.new, 1)
	}
	replace := map[string]string{}
	for path, text := range texts {
		replace[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "dispatcher")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "failpoint", "-overlay", file, "-o", program, "../cmd/dispatcher")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with the bug: %v\n%s", err, out)
	}
	return program
}
