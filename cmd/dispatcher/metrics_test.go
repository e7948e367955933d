package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

func TestObserver(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg, 10)
	m.Woke("notify")
	m.Claimed(0, time.Millisecond)
	m.Claimed(3, time.Millisecond)
	m.Claimed(10, time.Millisecond)
	m.Released(4, errors.New("gone"))
	now := time.Now()
	refused := errors.New("no")
	m.Settled(
		make([]dispatcher.Task, 7),
		[]dispatcher.Result{
			{Outcome: dispatcher.Stored, Acked: now},
			{Outcome: dispatcher.Stored, Acked: now},
			{Outcome: dispatcher.Duplicate, Acked: now},
			{Outcome: dispatcher.Duplicate, Acked: now, Unexplained: true},
			{Outcome: dispatcher.Refused, Err: refused},
			{Outcome: dispatcher.Refused, Err: refused, Dead: true},
			{Outcome: dispatcher.Rejected, Err: refused, Dead: true},
		}, 2*time.Millisecond)
	want := `
# HELP outbox_claims_total Claims by how much they found: empty, partial, full.
# TYPE outbox_claims_total counter
outbox_claims_total{result="empty"} 1
outbox_claims_total{result="full"} 1
outbox_claims_total{result="partial"} 1
# HELP outbox_dead_total Tasks that became dead letters: rejected by the broker, or out of attempts.
# TYPE outbox_dead_total counter
outbox_dead_total{reason="attempts"} 1
outbox_dead_total{reason="rejected"} 1
# HELP outbox_duplicates_total Tasks that a stream had stored before; not explained by a crash or a lost answer is an alarm.
# TYPE outbox_duplicates_total counter
outbox_duplicates_total{explained="false"} 1
outbox_duplicates_total{explained="true"} 1
# HELP outbox_published_total Publish attempts by outcome: stored, duplicate, refused, rejected, or unavailable, which is no answer.
# TYPE outbox_published_total counter
outbox_published_total{result="duplicate"} 2
outbox_published_total{result="refused"} 2
outbox_published_total{result="rejected"} 1
outbox_published_total{result="stored"} 2
outbox_published_total{result="unavailable"} 0
# HELP outbox_released_total Claimed tasks that were given back without counting an attempt, those of claims whose settlement failed included.
# TYPE outbox_released_total counter
outbox_released_total 4
# HELP outbox_wakes_total What made the dispatcher look for tasks.
# TYPE outbox_wakes_total counter
outbox_wakes_total{source="notify"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "outbox_claims_total", "outbox_dead_total",
		"outbox_duplicates_total", "outbox_published_total", "outbox_released_total", "outbox_wakes_total"); err != nil {
		t.Error(err)
	}
}

func TestEndToEndLatency(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg, 10)
	m.Settled(
		make([]dispatcher.Task, 3),
		[]dispatcher.Result{
			{Outcome: dispatcher.Stored, Latency: 1002 * time.Millisecond},
			{Outcome: dispatcher.Duplicate, Latency: 10 * time.Millisecond},
			{Outcome: dispatcher.Refused, Latency: time.Hour},
		}, 10*time.Millisecond)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "outbox_end_to_end_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if got, want := h.GetSampleSum(), 1.002+0.010; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("sum %v, want %v", got, want)
		}
		if first := h.GetBucket()[0].GetUpperBound(); first != 0.00025 {
			t.Errorf("the first bucket ends at %v s", first)
		}
		if h.GetSchema() == 0 && len(h.GetPositiveSpan()) == 0 {
			t.Error("there are no native buckets")
		}
		return
	}
	t.Error("outbox_end_to_end_seconds is missing")
}

func TestHealthMetrics(t *testing.T) {
	down := healthy()
	down.Wake = dispatcher.WakeHealth{Source: dispatcher.WakePoll, Masked: true}
	down.Sources = []dispatcher.WakeHealth{{Source: dispatcher.WakeNotify}, {Source: dispatcher.WakeWAL, Healthy: true}}
	down.Circuit.Open = true
	down.Stream = []dispatcher.Finding{{Severity: dispatcher.SeverityWarning}}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newHealthCollector(down))
	want := `
# HELP outbox_circuit_open Whether the broker is taken to be unavailable.
# TYPE outbox_circuit_open gauge
outbox_circuit_open 1
# HELP outbox_database_up Whether the last statement on the database succeeded.
# TYPE outbox_database_up gauge
outbox_database_up 1
# HELP outbox_ready Whether tasks can flow.
# TYPE outbox_ready gauge
outbox_ready 0
# HELP outbox_source_up Whether wakes are known to arrive, by each source that there is.
# TYPE outbox_source_up gauge
outbox_source_up{source="notify"} 0
outbox_source_up{source="wal"} 1
# HELP outbox_stream_findings What is wrong with the streams, by severity.
# TYPE outbox_stream_findings gauge
outbox_stream_findings{severity="error"} 0
outbox_stream_findings{severity="warning"} 1
# HELP outbox_wake_in_use Which source is relied on: 1 for that, 0 for the others.
# TYPE outbox_wake_in_use gauge
outbox_wake_in_use{source="notify"} 0
outbox_wake_in_use{source="poll"} 1
outbox_wake_in_use{source="wal"} 0
# HELP outbox_wake_masked Whether this process polls under load and has masked the notifications.
# TYPE outbox_wake_masked gauge
outbox_wake_masked 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// One registry with everything that the daemon registers passes the linter and
// is what the endpoint shows.
func TestMetricNames(t *testing.T) {
	reg := newRegistry()
	m := newMetrics(reg, 10)
	m.Woke("notify")
	reg.MustRegister(newHealthCollector(healthy()))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "outbox_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	code, body := get(t, newHandler(testApp(), healthy(), reg, running), "/metrics")
	if code != 200 {
		t.Fatalf("status %d", code)
	}
	for _, name := range []string{
		"outbox_published_total", "outbox_duplicates_total", "outbox_dead_total", "outbox_claim_seconds_bucket",
		"outbox_publish_seconds_bucket", `outbox_end_to_end_seconds_bucket{le="0.00025"}`, "outbox_claims_total",
		"outbox_released_total", "outbox_wakes_total", `outbox_source_up{source="notify"} 1`, "outbox_circuit_open 0", "outbox_wake_masked 0",
		"outbox_ready 1", "outbox_build_info{", "go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(body, name) {
			t.Errorf("%s is missing", name)
		}
	}
}
