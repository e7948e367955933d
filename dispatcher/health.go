package dispatcher

import "time"

// Health is a snapshot of what the dispatcher knows about its own state; see
// [Dispatcher.Health].
type Health struct {
	// Database is nil when the last statement succeeded.
	Database error
	// Wake tells of the wake source in use.
	Wake WakeHealth
	// Sources tells of each wake source by itself: none with WakePoll, two with
	// WakeAuto.
	Sources []WakeHealth
	// Circuit tells whether the broker is being asked.
	Circuit CircuitHealth
	// Stream holds what is wrong with the streams behind Prefix, worst first.
	Stream []Finding
	// Running is set once the schema was found and claiming began.
	Running bool
}

// Ready reports whether tasks can flow: the schema was found, the database
// answers, the circuit is closed, and no finding about a stream is an error. A
// degraded wake source costs latency only and leaves it ready.
func (h Health) Ready() bool {
	if h.Database != nil || !h.Running || h.Circuit.Open {
		return false
	}
	for _, f := range h.Stream {
		if f.Severity == SeverityError {
			return false
		}
	}
	return true
}

// WakeHealth tells of the wake source.
type WakeHealth struct {
	// Source is WakeNotify, WakeWAL or WakePoll. With WakeAuto it is the source in use.
	Source WakeMode
	// Healthy is set while wakes are known to arrive. While it is not, the
	// dispatcher looks every PollInterval. Always set with the mode WakePoll.
	Healthy bool
	// Detail says in words why it is not healthy, or what could be better, such as
	// why a preferred source is not in use.
	Detail string
	// Masked is set while this dispatcher polls under load and has masked the
	// notifications, which it does not need then; and after a statement that failed
	// until it knows that they are not. Never set in Sources.
	Masked bool
	// Since is when Source or Healthy last changed.
	Since time.Time
}

// CircuitHealth tells of the circuit breaker.
type CircuitHealth struct {
	// Open is set while the broker is taken to be unavailable: nothing is
	// claimed but single probes.
	Open bool
	// Cause is why it opened.
	Cause error
	// Since is when Open last changed.
	Since time.Time
}

// Severity grades a [Finding].
type Severity string

const (
	// SeverityWarning: tasks flow, but a promise is weaker than it could be.
	SeverityWarning Severity = "warning"
	// SeverityError: tasks cannot flow, or would be lost.
	SeverityError Severity = "error"
)

// Finding is one thing wrong with a stream, in one line, with the remedy.
type Finding struct {
	Severity Severity
	// Check is a stable short name: "exists", "window", "no-ack", "sealed",
	// "mirror", "full", "retention", "discard", "persist", "storage", "max-size".
	Check string
	// Stream is empty when no stream exists.
	Stream string
	Text   string
}
