package main

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// metrics is the [dispatcher.Observer] behind GET /metrics.
type metrics struct {
	dispatcher.NopObserver
	batch int

	published  *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	dead       *prometheus.CounterVec
	claims     *prometheus.CounterVec
	released   prometheus.Counter
	wakes      *prometheus.CounterVec
	claim      prometheus.Histogram
	publish    prometheus.Histogram
	endToEnd   prometheus.Histogram
}

// histogram has classic buckets, for everyone, and native ones, which a
// Prometheus that asks for them gets instead, ten for each doubling.
func histogram(name, help string, buckets int) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help,
		Buckets:                         prometheus.ExponentialBuckets(0.00025, 2, buckets),
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	})
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// newMetrics returns metrics that are registered with reg; batch is the size
// of a full claim.
func newMetrics(reg prometheus.Registerer, batch int) *metrics {
	m := &metrics{
		batch:      batch,
		published:  counter("outbox_published_total", "Publish attempts by outcome: stored, duplicate, refused, rejected, or unavailable, which is no answer.", "result"),
		duplicates: counter("outbox_duplicates_total", "Tasks that a stream had stored before; not explained by a crash or a lost answer is an alarm.", "explained"),
		dead:       counter("outbox_dead_total", "Tasks that became dead letters: rejected by the broker, or out of attempts.", "reason"),
		claims:     counter("outbox_claims_total", "Claims by how much they found: empty, partial, full.", "result"),
		wakes:      counter("outbox_wakes_total", "What made the dispatcher look for tasks.", "source"),
		released: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outbox_released_total", Help: "Claimed tasks that were given back without counting an attempt, those of claims whose settlement failed included.",
		}),
		claim:    histogram("outbox_claim_seconds", "Time to claim tasks.", 16),
		publish:  histogram("outbox_publish_seconds", "Time from the first publish of a claim to its last answer.", 16),
		endToEnd: histogram("outbox_end_to_end_seconds", "Time from when a task was due, its created_at or its send_after if that is later, to its acknowledgement. A long transaction of the producer counts in.", 20),
	}
	reg.MustRegister(m.published, m.duplicates, m.dead, m.claims, m.wakes, m.released, m.claim, m.publish, m.endToEnd)
	// A counter that appears with its first event hides that event from
	// rate(): let those with known labels start at zero.
	for o := dispatcher.Stored; o <= dispatcher.Unavailable; o++ {
		m.published.WithLabelValues(o.String())
	}
	for _, explained := range []bool{true, false} {
		m.duplicates.WithLabelValues(strconv.FormatBool(explained))
	}
	for _, reason := range []string{"rejected", "attempts"} {
		m.dead.WithLabelValues(reason)
	}
	for _, result := range []string{"empty", "partial", "full"} {
		m.claims.WithLabelValues(result)
	}
	return m
}

// Woke implements [dispatcher.Observer].
func (m *metrics) Woke(source string) { m.wakes.WithLabelValues(source).Inc() }

// Claimed implements [dispatcher.Observer].
func (m *metrics) Claimed(tasks int, took time.Duration) {
	m.claim.Observe(took.Seconds())
	result := "partial"
	switch {
	case tasks == 0:
		result = "empty"
	case tasks >= m.batch:
		result = "full"
	}
	m.claims.WithLabelValues(result).Inc()
}

// Settled implements [dispatcher.Observer].
func (m *metrics) Settled(_ []dispatcher.Task, results []dispatcher.Result, took time.Duration) {
	m.publish.Observe(took.Seconds())
	var count [dispatcher.Unavailable + 1]int
	for _, r := range results {
		count[r.Outcome]++
		if r.Outcome == dispatcher.Duplicate {
			m.duplicates.WithLabelValues(strconv.FormatBool(!r.Unexplained)).Inc()
		}
		if r.Outcome == dispatcher.Stored || r.Outcome == dispatcher.Duplicate {
			m.endToEnd.Observe(r.Latency.Seconds())
		}
		if r.Dead {
			reason := "attempts"
			if r.Outcome == dispatcher.Rejected {
				reason = "rejected"
			}
			m.dead.WithLabelValues(reason).Inc()
		}
	}
	for o, n := range count {
		if n > 0 {
			m.published.WithLabelValues(dispatcher.Outcome(o).String()).Add(float64(n)) // #nosec G115 -- below 5
		}
	}
}

// Released implements [dispatcher.Observer].
func (m *metrics) Released(tasks int, _ error) { m.released.Add(float64(tasks)) }

// healthCollector turns a snapshot of the health into gauges at each scrape.
type healthCollector struct {
	health                    healthSource
	sourceUp, inUse, masked   *prometheus.Desc
	circuit, ready            *prometheus.Desc
	streamFindings, connected *prometheus.Desc
}

func newHealthCollector(h healthSource) *healthCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &healthCollector{
		health:         h,
		sourceUp:       desc("outbox_source_up", "Whether wakes are known to arrive, by each source that there is.", "source"),
		inUse:          desc("outbox_wake_in_use", "Which source is relied on: 1 for that, 0 for the others.", "source"),
		masked:         desc("outbox_wake_masked", "Whether this process polls under load and has masked the notifications."),
		circuit:        desc("outbox_circuit_open", "Whether the broker is taken to be unavailable."),
		ready:          desc("outbox_ready", "Whether tasks can flow."),
		connected:      desc("outbox_database_up", "Whether the last statement on the database succeeded."),
		streamFindings: desc("outbox_stream_findings", "What is wrong with the streams, by severity.", "severity"),
	}
}

// Describe implements [prometheus.Collector].
func (c *healthCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements [prometheus.Collector].
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	h := c.health.Health()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range h.Sources {
		gauge(c.sourceUp, number(s.Healthy), string(s.Source))
	}
	for _, source := range []dispatcher.WakeMode{dispatcher.WakeNotify, dispatcher.WakeWAL, dispatcher.WakePoll} {
		gauge(c.inUse, number(source == h.Wake.Source), string(source))
	}
	gauge(c.masked, number(h.Wake.Masked))
	gauge(c.circuit, number(h.Circuit.Open))
	gauge(c.ready, number(h.Ready()))
	gauge(c.connected, number(h.Database == nil))
	count := map[dispatcher.Severity]int{dispatcher.SeverityError: 0, dispatcher.SeverityWarning: 0}
	for _, f := range h.Stream {
		count[f.Severity]++
	}
	for severity, n := range count {
		gauge(c.streamFindings, float64(n), string(severity))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// newRegistry returns a registry of our own, with what tells about the process
// and the build. The global one collects whatever a library registers.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	v := readVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outbox_build_info", Help: "The version of the program; the value is 1.",
		ConstLabels: prometheus.Labels{"version": v.Version, "revision": v.Revision, "goversion": v.Go},
	})
	info.Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
