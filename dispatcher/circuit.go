package dispatcher

import (
	"errors"
	"sync"
	"time"
)

var errStarting = errors.New("the broker was not asked yet")

// circuit keeps the dispatcher from claiming while the broker cannot be
// asked: an outage must not write two dead row versions per task and try.
// While it is open, a probe is due after each jittered backoff; the broker
// client's own reconnect makes one due at once.
type circuit struct {
	retry   backoff
	changed func(CircuitHealth)

	mu       sync.Mutex
	health   CircuitHealth
	failures int
	probeAt  time.Time
}

func newCircuit(changed func(CircuitHealth)) *circuit {
	return &circuit{
		retry:   backoff{min: 100 * time.Millisecond, max: 5 * time.Second},
		changed: changed,
		// Open until a first probe has found a stream.
		health:  CircuitHealth{Open: true, Cause: errStarting, Since: time.Now()},
		probeAt: time.Now(),
	}
}

func (c *circuit) snapshot() CircuitHealth {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health
}

// open reports whether claiming is stopped, and since when on a probe is due.
func (c *circuit) open() (bool, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health.Open, c.probeAt
}

// trip opens the circuit, or counts one more failed probe.
func (c *circuit) trip(cause error) {
	c.mu.Lock()
	opened := !c.health.Open
	if opened {
		c.health.Since = time.Now()
		c.failures = 0
	}
	// Several claims in hand fail together: while a probe is still to come,
	// they are one failure.
	if opened || !time.Now().Before(c.probeAt) {
		c.failures++
		c.probeAt = time.Now().Add(c.retry.delay(c.failures))
	}
	news := opened || c.health.Cause == errStarting //nolint:errorlint // our own, never wrapped
	c.health.Open, c.health.Cause = true, cause
	h := c.health
	c.mu.Unlock()
	if news {
		c.changed(h)
	}
}

// probeNow makes a probe due at once, and the ones after it frequent again.
func (c *circuit) probeNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.probeAt = 0, time.Now()
}

// reset closes the circuit: the broker answered.
func (c *circuit) reset() {
	c.mu.Lock()
	closed := c.health.Open
	if closed {
		c.health = CircuitHealth{Since: time.Now()}
	}
	c.failures = 0
	h := c.health
	c.mu.Unlock()
	if closed {
		c.changed(h)
	}
}
