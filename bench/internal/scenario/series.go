package scenario

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// series is one figure of several runs, in the order of the runs.
type series []float64

// median is the middle value, the mean of the middle two of an even number, and
// 0 of none.
func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// ratios divides run by run, which takes out what the machine did meanwhile to
// both.
func ratios(a, b series) series {
	var out series
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return out
}

// durations is a distribution of times. It is not safe for concurrent use.
type durations struct{ h *hdrhistogram.Histogram }

const shortest, longest = time.Microsecond, 10 * time.Minute

func newDurations() durations {
	return durations{hdrhistogram.New(1, longest.Nanoseconds(), 3)}
}

// add records one time. Both ends of a measured time are read by goroutines that
// wait for a CPU, so a very short one can come out negative: it counts as the
// shortest, which ratios can be made of. One beyond the range counts as the longest.
func (d durations) add(t time.Duration) {
	// The value is within the range, so there is no error.
	_ = d.h.RecordValue(min(max(t, shortest), longest).Nanoseconds())
}

func (d durations) merge(other durations) { d.h.Merge(other.h) }

func (d durations) count() int64 { return d.h.TotalCount() }

// ms returns a percentile (0 to 100) in milliseconds.
func (d durations) ms(percentile float64) float64 {
	return inMS(time.Duration(d.h.ValueAtPercentile(percentile)))
}

// cdf are the points of the distribution: milliseconds, and how many percent of the
// times are at most that long. The shortest are left out: the producer may be told of its
// commit after the message has arrived.
func (d durations) cdf() (points [][2]float64) {
	for _, p := range []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100} {
		points = append(points, [2]float64{d.ms(p), p})
	}
	return points
}

func inMS(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }
