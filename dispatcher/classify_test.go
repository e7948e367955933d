package dispatcher

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestClassify(t *testing.T) {
	api := func(code int, text string) error {
		return fmt.Errorf("nats: %w", &jetstream.APIError{Code: code / 25, ErrorCode: jetstream.ErrorCode(code), Description: text})
	}
	for _, tt := range []struct {
		err  error
		want Outcome
	}{
		{nats.ErrConnectionClosed, Unavailable},
		{nats.ErrConnectionDraining, Unavailable},
		{nats.ErrReconnectBufExceeded, Unavailable},
		{nats.ErrDisconnected, Unavailable},
		{nats.ErrTimeout, Unavailable},
		{nats.ErrHeadersNotSupported, Unavailable},
		{jetstream.ErrAsyncPublishTimeout, Unavailable},
		{jetstream.ErrNoStreamResponse, Unavailable},
		{jetstream.ErrTooManyStalledMsgs, Unavailable},
		{jetstream.ErrInvalidJSAck, Unavailable},
		{errors.New("something new"), Unavailable},
		{api(10008, "temporarily unavailable"), Unavailable},
		{api(10023, "insufficient resources"), Unavailable},
		{api(10039, "not enabled for account"), Unavailable},
		{api(10076, "not enabled"), Unavailable},
		{api(10158, "duplicate message id is in process"), Unavailable},
		{api(10167, "too many requests"), Unavailable},
		{api(10002, "resource limits exceeded for account"), Refused},
		{api(10077, "maximum messages exceeded"), Refused},
		{api(10077, "maximum messages per subject exceeded"), Refused},
		{api(10109, "invalid operation on sealed stream"), Refused},
		{api(10060, "expected stream does not match"), Refused},
		{api(10166, "per-message TTL is disabled"), Refused},
		{api(99999, "a code of a later server"), Refused},
		{api(10054, "message size exceeds maximum allowed"), Rejected},
		{api(10097, "header size exceeds maximum"), Rejected},
		{api(10165, "invalid per-message TTL"), Rejected},
		{nats.ErrMaxPayload, Rejected},
		{nats.ErrBadSubject, Rejected},
		{nats.ErrBadHeaderMsg, Rejected},
	} {
		if got := classify(fmt.Errorf("publish: %w", tt.err)); got != tt.want {
			t.Errorf("classify(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestDeniedSubject(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: %s", nats.ErrPermissionViolation, `Permissions Violation for Publish to "outbox.Email"`), "outbox.Email"},
		{fmt.Errorf("%w: %s", nats.ErrPermissionViolation, `Permissions Violation for Subscription to "x"`), ""},
		{errors.New(`Publish to "x"`), ""},
		{nil, ""},
	} {
		if got, _ := deniedSubject(tt.err); got != tt.want {
			t.Errorf("deniedSubject(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}
