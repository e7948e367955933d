package main

import (
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCompare lets every peer relay: a task that one of them lost or sent twice is an
// error of the run.
func TestCompare(t *testing.T) {
	var stdout, stderr strings.Builder
	args := []string{"compare", "--rounds", "1", "--slice", "300ms", "--rate", "50", "--tasks", "300", "--within", "20s", "--writers", "2", "--seconds", "0.2"}
	if code := scenario.Run(t.Context(), args, &stdout, &stderr, peers()...); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	for _, p := range append(peers(), scenario.Peer{Name: "outbox"}) {
		name := strings.ReplaceAll(p.Name, "-", "_")
		positive(t, stdout.String(), "p50_ms_"+name)
		positive(t, stdout.String(), "commits_"+name+"_2")
		if !p.Floor {
			positive(t, stdout.String(), "drain_per_s_"+name)
		}
	}
	for _, key := range []string{"latency_vs_dual_write", "latency_vs_best_polling", "drain_vs_best_peer", "masked_vs_none_2", "classic_vs_none_2"} {
		positive(t, stdout.String(), key)
	}
	if strings.Contains(stdout.String(), "unknown version") {
		t.Errorf("a peer's version is not known: %s", &stdout)
	}
}

// positive checks that a key of the last line is there. Its size matters only on a
// machine that does nothing else.
func positive(t *testing.T, out, key string) {
	t.Helper()
	_, rest, found := strings.Cut(out, " "+key+"=")
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if v, err := strconv.ParseFloat(value, 64); !found || err != nil || v <= 0 {
		t.Errorf("%s=%q, want a positive number in: %s", key, value, out)
	}
}

func TestUnknownPeerIsRefused(t *testing.T) {
	t.Parallel()
	var stdout, stderr strings.Builder
	code := scenario.Run(t.Context(), []string{"compare", "--peer", "rivver"}, &stdout, &stderr, peers()...)
	if code == 0 || !strings.Contains(stderr.String(), "rivver") || !strings.Contains(stderr.String(), "river-tuned") {
		t.Errorf("exit code %d and %q, want a failure that names the peer and those that there are", code, &stderr)
	}
}
