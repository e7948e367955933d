package dispatcher

import "time"

// Task is one outbox row on its way to the broker.
type Task struct {
	ID   int64
	Kind string
	Body []byte
	// Attempt counts this attempt, from 1. Attempts that ended in an outage
	// were not counted.
	Attempt   int
	CreatedAt time.Time
	// Age is how long the task had been due when it was claimed, by the
	// database's clock alone.
	Age time.Duration

	// claimed is when the claim was read, by this process's clock.
	claimed time.Time
	// sendAfter is the task's place in the due index.
	sendAfter time.Time
	// rawHeaders is the headers column as JSON text, or nil.
	rawHeaders []byte
	// size is the body's length in bytes. Above the broker's limit the body
	// was not fetched.
	size int
}

// Outcome says what became of one publish attempt of a task.
type Outcome uint8

const (
	// Stored: a stream acknowledged the message.
	Stored Outcome = iota
	// Duplicate: a stream had stored the same message id before. A success.
	Duplicate
	// Refused: the broker answered about this task that it would not take it
	// now. The attempt counts; the task is retried after a backoff.
	Refused
	// Rejected: the message can never be taken. It becomes a dead letter.
	Rejected
	// Unavailable: the broker could not be asked, or its answer was lost.
	// The attempt does not count. The message may have been stored; the next
	// attempt carries the same message id.
	Unavailable
)

// String returns the outcome's name in lower case, as used in metrics.
func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Duplicate:
		return "duplicate"
	case Refused:
		return "refused"
	case Rejected:
		return "rejected"
	case Unavailable:
		return "unavailable"
	}
	return "unknown"
}

// Result is the outcome of one task of a claim.
type Result struct {
	Outcome Outcome
	// Err is the reason unless the task was stored.
	Err error
	// Acked is when the answer arrived, by this process's clock.
	Acked time.Time
	// Latency is the time from when the task became due (its creation, or
	// send_after if that is later) to the answer. The database's clock measures
	// it up to the claim and this process's from there, so the two need not agree.
	Latency time.Duration
	// Dead is set if the task was made a dead letter: rejected, or refused
	// for the last time.
	Dead bool
	// Unexplained marks a Duplicate that no crash and no lost answer of the
	// recent past explains, and whose stored message is another's, or cannot be
	// read: two tasks may share a message id.
	Unexplained bool

	// local is set if the broker was not asked.
	local bool
	// stream and seq say where the message is, or its first copy.
	stream string
	seq    uint64
}
