package dispatcher

import (
	"math/rand/v2"
	"time"
)

// backoff is an exponential delay with jitter, for reconnects and for the
// retry time of a refused task alike.
type backoff struct {
	min, max time.Duration
}

// delay returns how long to wait after the n-th failure in a row, n counting
// from 1: a random time between half of min*2^(n-1) and all of it, never more
// than max. It is defined for every n; below 1 it is taken as 1.
func (b backoff) delay(n int) time.Duration {
	d := b.max
	if shift := max(n, 1) - 1; shift < 62 && b.min <= b.max>>shift {
		d = b.min << shift
	}
	half := d / 2
	return half + rand.N(d-half+1)
}
