package dispatcher

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffTable(t *testing.T) {
	b := backoff{min: time.Second, max: 10 * time.Minute}
	for _, tt := range []struct {
		n    int
		want time.Duration // upper bound; the lower one is half of it
	}{
		{-1 << 62, time.Second},
		{0, time.Second},
		{1, time.Second},
		{2, 2 * time.Second},
		{10, 512 * time.Second},
		{11, 10 * time.Minute},
		{62, 10 * time.Minute},
		{63, 10 * time.Minute},
		{64, 10 * time.Minute},
		{1 << 62, 10 * time.Minute},
	} {
		for range 100 {
			if got := b.delay(tt.n); got < tt.want/2 || got > tt.want {
				t.Fatalf("delay(%d) = %v, want %v to %v", tt.n, got, tt.want/2, tt.want)
			}
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "min"))
		hi := time.Duration(rapid.Int64Range(int64(lo), int64(24*time.Hour)).Draw(t, "max"))
		n := rapid.Int().Draw(t, "n")
		b := backoff{min: lo, max: hi}
		d := b.delay(n)
		if d < lo/2 || d > hi {
			t.Fatalf("delay(%d) = %v, outside %v..%v", n, d, lo/2, hi)
		}
		if n >= 1 && n < 40 {
			want := hi
			if scaled := float64(lo) * float64(uint64(1)<<(n-1)); scaled < float64(hi) {
				want = time.Duration(scaled)
			}
			if d < want/2-1 || d > want+1 {
				t.Fatalf("delay(%d) = %v, want about %v/2..%v", n, d, want, want)
			}
		}
	})
}
