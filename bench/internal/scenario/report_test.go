package scenario

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sampleReport() *report {
	r := newReport("sample")
	r.Started = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	r.Machine = machine{OS: "linux/amd64", Cores: 2, Load: 0.5, Go: "go1.26.8", Module: "v1", PostgreSQL: "15.1", NATS: "2.15.3"}
	r.setting("load", "some")
	r.row("speed", "tasks/s", series{30, 10, 20})
	r.row("a quite long name of a row", "", series{1.23456})
	r.target("ratio", 1.6, false, "at most 1.5")
	r.key("drain_per_s", 66234.5)
	r.key("ratio", 1.6)
	return r
}

func TestLastLineIsKeyValue(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := sampleReport().print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got, want := lines[len(lines)-1], "scenario=sample drain_per_s=66230 ratio=1.6"; got != want {
		t.Errorf("the last line is %q, want %q", got, want)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := sampleReport().print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"linux/amd64, 2 cores, load before 0.50\n",
		"PostgreSQL 15.1, nats-server 2.15.3, go1.26.8\n",
		"     20        10..30  tasks/s     3   speed\n",
		"  1.235  1.235..1.235              1   a quite long name of a row\n",
		"target ratio at most 1.5: MISSED (1.6)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.05: "0.05", 1.23456: "1.235", -2.5: "-2.5", 66234.5: "66230",
		123456789: "123500000", 0.000012349: "0.00001235", 1e22: "10000000000000000000000",
	} {
		if got := number(v); got != want {
			t.Errorf("%g is written as %q, want %q", v, got, want)
		}
	}
}

func TestJSONHoldsTheWholeReport(t *testing.T) {
	t.Parallel()
	want := sampleReport()
	path := filepath.Join(t.TempDir(), "report.json")
	if err := want.writeJSON(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := &report{}
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report read back differs (-written +read):\n%s", diff)
	}
	if err := want.writeJSON(filepath.Join(t.TempDir(), "missing", "report.json")); err == nil {
		t.Error("a report that cannot be written is no error")
	}
}
