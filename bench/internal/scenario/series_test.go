package scenario

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   series
		want float64
	}{
		"none":              {nil, 0},
		"one":               {series{7}, 7},
		"odd, not sorted":   {series{9, 1, 5}, 5},
		"even":              {series{4, 1, 3, 2}, 2.5},
		"an outlier":        {series{1, 1, 1, 1, 1000}, 1},
		"two of four equal": {series{2, 2, 8, 9}, 5},
	} {
		in := append(series(nil), c.in...)
		if got := c.in.median(); got != c.want {
			t.Errorf("%s: median of %v is %v, want %v", name, in, got, c.want)
		}
		for i := range in {
			if in[i] != c.in[i] {
				t.Errorf("%s: the order of the runs changed: %v", name, c.in)
			}
		}
	}
}

func TestRatiosRunByRun(t *testing.T) {
	t.Parallel()
	got := ratios(series{2, 9, 5}, series{1, 3})
	if len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("ratios are %v, want [2 3]", got)
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	d := newDurations()
	for ms := 1; ms <= 1000; ms++ {
		d.add(time.Duration(ms) * time.Millisecond)
	}
	for percentile, want := range map[float64]float64{50: 500, 99: 990, 100: 1000} {
		if got := d.ms(percentile); math.Abs(got-want) > want/500 {
			t.Errorf("p%v is %v ms, want %v within 0.2 %%", percentile, got, want)
		}
	}
}

func TestDurationsBeyondTheRangeAreKept(t *testing.T) {
	t.Parallel()
	d := newDurations()
	d.add(-time.Millisecond)
	d.add(2 * longest)
	if d.count() != 2 {
		t.Errorf("%d of 2 times were recorded", d.count())
	}
	if got := d.ms(50); got != inMS(shortest) {
		t.Errorf("a negative time counts as %v ms, want %v", got, inMS(shortest))
	}
	if got := d.ms(100); math.Abs(got-inMS(longest)) > inMS(longest)/500 {
		t.Errorf("a time beyond the range counts as %v ms, want %v", got, inMS(longest))
	}
}

func TestMergeKeepsBoth(t *testing.T) {
	t.Parallel()
	a, b := newDurations(), newDurations()
	a.add(time.Millisecond)
	b.add(3 * time.Millisecond)
	a.merge(b)
	if a.count() != 2 || math.Abs(a.ms(100)-3) > 0.01 {
		t.Errorf("merged: %d times up to %v ms, want 2 up to 3", a.count(), a.ms(100))
	}
}

func TestCombinedSpeedIsThatOfOneAfterTheOther(t *testing.T) {
	t.Parallel()
	// 2 s for one kind of work and 3 s for the other make 5 s per 600.
	got := combined(series{300}, series{200})
	if len(got) != 1 || math.Abs(got[0]-120) > 1e-9 {
		t.Errorf("combined speed is %v, want [120]", got)
	}
}
