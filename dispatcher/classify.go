package dispatcher

import (
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// codeOutcome sorts JetStream's answers by err_code, never by text or HTTP-like
// status: account limit (10002) and sealed (10109) say 400 but mean the
// stream, 10158 says 409 but means unknown. An answer that is not listed is
// about this message: it counts as refused. Source: errors.json of
// nats-server 2.15.
var codeOutcome = map[jetstream.ErrorCode]Outcome{
	10004: Unavailable, // incomplete results
	10007: Unavailable, // cluster not assigned
	10008: Unavailable, // system temporarily unavailable
	10009: Unavailable, // cluster not leader
	10023: Unavailable, // insufficient resources
	10028: Unavailable, // insufficient memory resources
	10035: Unavailable, // account not found
	10039: Unavailable, // JetStream not enabled for account
	10041: Unavailable, // raft error
	10047: Unavailable, // insufficient storage resources
	10076: Unavailable, // JetStream not enabled
	10118: Unavailable, // stream is offline
	10158: Unavailable, // duplicate message id is in process: neither stored nor refused
	10163: Unavailable, // expected sequence temporarily unavailable
	10167: Unavailable, // too many requests
	10194: Unavailable, // stream is offline, with a reason
	10210: Unavailable, // atomic publish: too many in flight
	10211: Unavailable, // batch publish: too many in flight

	10054: Rejected, // message size exceeds maximum allowed
	10097: Rejected, // header size exceeds 64k
	10165: Rejected, // invalid per-message TTL
	10169: Rejected, // counter increment missing
	10170: Rejected, // counter message with payload
	10171: Rejected, // counter increment invalid
	10189: Rejected, // schedule pattern invalid
	10190: Rejected, // schedule target invalid
	10191: Rejected, // schedule TTL invalid
	10192: Rejected, // schedule rollup invalid
	10203: Rejected, // schedule source invalid
	10212: Rejected, // schedule scheduler invalid
	10223: Rejected, // schedule time zone invalid
	10227: Rejected, // stream source header not allowed
}

// classify sorts what the client or the broker said about one message.
// Silence and "no responders" come out as Unavailable; whether they concern
// the broker or one subject is told apart later, by asking it.
func classify(err error) Outcome {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		if o, ok := codeOutcome[api.ErrorCode]; ok {
			return o
		}
		return Refused
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload),
		errors.Is(err, nats.ErrBadSubject),
		errors.Is(err, nats.ErrBadHeaderMsg):
		return Rejected
	}
	// Disconnected, timed out, no responders, draining, stalled, a server
	// without headers, an answer that is no acknowledgement.
	return Unavailable
}

// silent reports whether the broker gave no answer about the message at all,
// so that its subject is worth asking about.
func silent(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, jetstream.ErrAsyncPublishTimeout) ||
		errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, errAckLate)
}

// deniedSubject extracts the subject from a permission violation, which the
// server reports on the connection, not on the message.
func deniedSubject(err error) (string, bool) {
	if err == nil || !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, found := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	return subject, found && closed && subject != ""
}
