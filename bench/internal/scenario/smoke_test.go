package scenario

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runBench runs the program and returns the pairs of its last line.
func runBench(t *testing.T, args ...string) map[string]string {
	t.Helper()
	var stdout, stderr strings.Builder
	args = append(args, "--json", filepath.Join(t.TempDir(), "report.json"))
	if code := Run(t.Context(), args, &stdout, &stderr); code != exitOK {
		t.Fatalf("bench %s ended with %d: %s", strings.Join(args, " "), code, &stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	pairs := map[string]string{}
	for pair := range strings.FieldsSeq(lines[len(lines)-1]) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			t.Fatalf("the last line is no key=value line: %q", lines[len(lines)-1])
		}
		pairs[key] = value
	}
	return pairs
}

// positive checks that the keys are there. How large they are is for a machine
// that does nothing else.
func positive(t *testing.T, pairs map[string]string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if v, err := strconv.ParseFloat(pairs[key], 64); err != nil || v <= 0 {
			t.Errorf("%s=%q in %v, want a positive number", key, pairs[key], pairs)
		}
	}
}

// The scenarios run one after the other: each fills the machine.

func TestLatency(t *testing.T) {
	positive(t, runBench(t, "latency", "--wake=notify,wal,poll", "--slices", "2", "--slice", "500ms"),
		"ratio_p50", "p50_ms_wal", "p50_ms_poll", "floor_p50_ms_3000", "p50_ms", "p99_ms", "floor_p50_ms", "rate", "masked_vs_classic_200", "p50_ms_3000", "p99_ms_3000", "unmask_ms")
}

func TestDrain(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "cpu.prof")
	positive(t, runBench(t, "drain", "--tasks", "2000", "--rounds", "2", "--cpuprofile", profile),
		"drain_per_s", "drain_vs_ceiling", "claim_per_s", "publish_per_s")
}

func TestCommits(t *testing.T) {
	pairs := runBench(t, "commits", "--writers", "2,1", "--rounds", "1", "--seconds", "0.2", "--bulk", "200")
	positive(t, pairs, "commits_none_1", "commit_p50_ms_classic_2", "commit_p99_ms_masked_2",
		"masked_vs_none_2", "masked_vs_classic_1", "bulk_masked_vs_none")
	if v, err := strconv.ParseFloat(pairs["notifies_per_task_2"], 64); err != nil || v < 0 || v > 1 {
		t.Errorf("notifies_per_task_2=%q, want 0 to 1", pairs["notifies_per_task_2"])
	}
}

func TestSweep(t *testing.T) {
	charts := t.TempDir()
	positive(t, runBench(t, "latency", "--sweep", "--slices", "1", "--slice", "100ms", "--plot", charts), "p50_ms_10", "p99_ms_200", "saturation_per_s")
	for _, name := range []string{"latency-sweep.svg", "latency-cdf.svg"} {
		if info, err := os.Stat(filepath.Join(charts, name)); err != nil || info.Size() == 0 {
			t.Errorf("--plot has not drawn %s: %v", name, err)
		}
	}
}

func TestScale(t *testing.T) {
	positive(t, runBench(t, "scale", "--dispatchers", "1,3", "--tasks", "2000", "--rate", "100", "--slice", "300ms", "--rounds", "1"),
		"drain_per_s_1", "drain_per_s_3", "p50_ms_1", "p99_ms_3", "empty_claims_per_task_3")
}

func TestOutage(t *testing.T) {
	pairs := runBench(t, "outage", "--away", "1s", "--rate", "100")
	positive(t, pairs, "catch_up_s", "waiting", "commit_p50_ms_before", "commit_p50_ms_during", "commit_p99_ms_after")
	if pairs["attempts_max"] != "1" {
		t.Errorf("attempts_max=%s: an outage of the broker must not take attempts of the tasks", pairs["attempts_max"])
	}
}

func TestSoak(t *testing.T) {
	positive(t, runBench(t, "soak", "--duration", "2s", "--rate", "100"), "table_growth", "index_growth", "latency_growth", "table_mb", "p50_ms")
}

func TestBacklog(t *testing.T) {
	positive(t, runBench(t, "backlog", "--rows", "1000", "--rate", "50", "--slice", "300ms", "--rounds", "1"),
		"backlog_ratio", "claim_p50_ms_fresh", "backlog_ratio_dead_entries", "backlog_ratio_many_dead_entries", "backlog_ratio_sent", "backlog_ratio_scheduled", "backlog_ratio_dead_letters")
}

// TestCompareElsewhere leaves the comparison to the program that has the peers, with
// its arguments and exit code.
func TestCompareElsewhere(t *testing.T) {
	t.Parallel()
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{"compare", "--peer", "rivver"}, &stdout, &stderr)
	if code != exitFailure || !strings.Contains(stderr.String(), "river-tuned") {
		t.Errorf("exit code %d and %q, want a failure that names the peers that there are", code, &stderr)
	}
}

func TestDaemonScenarios(t *testing.T) {
	positive(t, runBench(t, "drain", "--process", "--tasks", "2000", "--rounds", "1"), "drain_per_s", "drain_vs_ceiling")
	positive(t, runBench(t, "memory", "--tasks", "3", "--small", "100"), "idle_rss_mb", "drain_small_peak_rss_mb", "drain_1mb_peak_rss_mb")
	pairs := runBench(t, "idle", "--duration", "1s")
	for _, key := range []string{"idle_queries_per_min", "idle_cpu_percent"} {
		if _, err := strconv.ParseFloat(pairs[key], 64); err != nil {
			t.Errorf("%s=%q in %v, want a number", key, pairs[key], pairs)
		}
	}
}

func TestWrongUseIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no scenario":       {nil, exitUsage, "latency"},
		"unknown scenario":  {[]string{"latenzy"}, exitUsage, "latenzy"},
		"rate of zero":      {[]string{"latency", "--rate", "0"}, exitFailure, "--rate"},
		"no tasks":          {[]string{"drain", "--tasks", "0"}, exitFailure, "--tasks"},
		"idle elsewhere":    {[]string{"idle", "--dsn", "postgres:///x"}, exitFailure, "leave out --dsn"},
		"unreadable dsn":    {[]string{"latency", "--dsn", "postgres://:x:y"}, exitFailure, "--dsn"},
		"no writers":        {[]string{"commits", "--writers", "0"}, exitFailure, "--writers"},
		"no dispatchers":    {[]string{"scale", "--dispatchers", "0"}, exitFailure, "--dispatchers"},
		"claims elsewhere":  {[]string{"backlog", "--process"}, exitFailure, "leave out --process"},
		"no rows":           {[]string{"backlog", "--rows", "1"}, exitFailure, "--rows"},
		"broker elsewhere":  {[]string{"outage", "--nats", "nats://localhost"}, exitFailure, "leave out --nats"},
		"short outage":      {[]string{"outage", "--away", "1ms"}, exitFailure, "--away"},
		"short soak":        {[]string{"soak", "--duration", "1ms"}, exitFailure, "--duration"},
		"negative duration": {[]string{"idle", "--duration=-1s"}, exitFailure, "--duration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			if code := Run(t.Context(), c.args, &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
				t.Errorf("standard error %q does not tell of %q, or standard output %q is not empty", &stderr, c.want, &stdout)
			}
		})
	}
}
