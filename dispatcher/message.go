package dispatcher

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Header names that each message carries, beside the task's own headers.
const (
	// HeaderTaskID is the task's id, the primary key of its row.
	HeaderTaskID = "Outbox-Task-Id"
	// HeaderKind is the task's kind: the subject without the prefix.
	HeaderKind = "Outbox-Kind"
	// HeaderAttempt counts the answered attempts including this one, from 1.
	HeaderAttempt = "Outbox-Attempt"
	// HeaderCreatedAt is the row's created_at in UTC, RFC 3339 with microseconds.
	HeaderCreatedAt = "Outbox-Created-At"
)

const (
	// maxSubject is far below the roughly 4,060 bytes at which the server
	// closes the connection for good.
	maxSubject = 255
	// createdAtLayout is RFC 3339 with the database's precision.
	createdAtLayout = "2006-01-02T15:04:05.000000Z"
)

var headerNamePattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")

// reservedHeaders are names, in lower case, that a task may not set: they
// are ours, only a server may set them, or they are commands to the stream
// that could lose messages (Nats-Rollup wipes it, Nats-Trace-Only suppresses storing).
var reservedHeaders = map[string]bool{
	"nats-msg-id": true, "nats-trace-only": true, "nats-incr": true, "nats-rollup": true,
	"nats-scheduler": true, "nats-schedule-next": true, "nats-marker-reason": true,
	"nats-stream": true, "nats-stream-source": true, "nats-sequence": true, "nats-subject": true,
	"nats-time-stamp": true, "nats-last-sequence": true, "nats-num-pending": true,
	"nats-response-type": true, "nats-required-api-level": true,
	"status": true, "description": true,
}

var reservedPrefixes = []string{"nats-expected-", "nats-batch-", "outbox-"}

// validTokens reports whether s is made of letters, digits, _ and - in tokens
// separated by single dots. It runs for every task, where a regular expression
// would be the dearest step of building a message.
func validTokens(s string) bool {
	token := 0 // bytes of the token so far
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			token++
		case c == '.' && token > 0:
			token = 0
		default:
			return false
		}
	}
	return token > 0
}

// messageID identifies a task to the stream's duplicate window. The id alone
// would not do: after a crash of asynchronously committing producers, a
// lagging failover or a restore the sequence issues ids anew, and the stream
// would drop the second task without a trace. So its creation time is part of it.
func messageID(source string, t *Task) string {
	return string(appendMessageID(make([]byte, 0, len(source)+40), source, t))
}

func appendMessageID(b []byte, source string, t *Task) []byte {
	b = append(b, source...)
	b = append(b, '.')
	b = strconv.AppendInt(b, t.ID, 10)
	b = append(b, '.')
	return strconv.AppendInt(b, t.CreatedAt.UnixMicro(), 36)
}

// roomyMsg is a message with room for the values of its headers: one allocation
// instead of six.
type roomyMsg struct {
	msg    nats.Msg
	values [5]string
}

// message builds what is published for a task. An error means that the task
// can never be published. The table's checks refuse such rows at INSERT, but
// a check can be dropped or be older than the row.
func message(prefix, source string, t *Task) (*nats.Msg, error) {
	if n := len(prefix) + 1 + len(t.Kind); n > maxSubject {
		return nil, fmt.Errorf("subject of %d bytes %.80q...: at most %d are allowed, shorten the kind", n, prefix+"."+t.Kind, maxSubject)
	}
	if !validTokens(t.Kind) {
		return nil, fmt.Errorf("kind %.80q is not made of letters, digits, _ and - with single dots between", t.Kind)
	}
	// All texts are cut from one string, which is one allocation for all.
	var room [2 * maxSubject]byte
	b := append(room[:0], prefix...)
	b = append(b, '.')
	b = append(b, t.Kind...)
	subject := len(b)
	b = appendMessageID(b, source, t)
	msgID := len(b)
	b = strconv.AppendInt(b, t.ID, 10)
	id := len(b)
	b = t.CreatedAt.UTC().AppendFormat(b, createdAtLayout)
	text := string(b)

	l := &roomyMsg{values: [5]string{text[subject:msgID], text[msgID:id], t.Kind, strconv.Itoa(t.Attempt), text[id:]}}
	h := make(nats.Header, len(l.values))
	for i, name := range [...]string{jetstream.MsgIDHeader, HeaderTaskID, HeaderKind, HeaderAttempt, HeaderCreatedAt} {
		h[name] = l.values[i : i+1 : i+1]
	}
	if t.rawHeaders != nil {
		if err := addHeaders(h, t.rawHeaders); err != nil {
			return nil, err
		}
	}
	l.msg = nats.Msg{Subject: text[:subject], Data: t.Body, Header: h}
	return &l.msg, nil
}

func addHeaders(h nats.Header, raw []byte) error {
	var own map[string]string
	if err := json.Unmarshal(raw, &own); err != nil {
		return fmt.Errorf("headers are not an object of strings: %w", err)
	}
	for name, value := range own {
		if !headerNamePattern.MatchString(name) {
			return fmt.Errorf("header name %.80q: 1 to 128 letters, digits or punctuation other than : are allowed", name)
		}
		if lower := strings.ToLower(name); reservedHeaders[lower] || hasAnyPrefix(lower, reservedPrefixes) {
			return fmt.Errorf("header %q is reserved: choose another name", name)
		}
		if strings.ContainsAny(value, "\x00\r\n") {
			return fmt.Errorf("header %q has a line break or NUL in its value: encode the value", name)
		}
		h[name] = []string{value}
	}
	return nil
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// wireSize estimates the bytes that the broker counts against max_payload.
func wireSize(m *nats.Msg) int {
	n := len("NATS/1.0\r\n\r\n") + len(m.Data)
	for name, values := range m.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}
