package scenario

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// messages makes messages of the same size and with the same headers as the
// dispatcher's, as cheaply as can be: what they have in common is made once.
type messages struct {
	subject, idPrefix, idSuffix string
	payload                     []byte
	kind, attempt, created      []string
}

func newMessages(l *lane, payload []byte, created time.Time) *messages {
	return &messages{
		subject:  l.prefix + "." + kind,
		idPrefix: l.prefix + ".",
		idSuffix: "." + strconv.FormatInt(created.UnixMicro(), 36),
		payload:  payload,
		kind:     []string{kind},
		attempt:  []string{"1"},
		created:  []string{created.UTC().Format("2006-01-02T15:04:05.000000Z")},
	}
}

// of makes the message of a task.
func (m *messages) of(id int64) *nats.Msg {
	task := strconv.FormatInt(id, 10)
	return &nats.Msg{
		Subject: m.subject,
		Data:    m.payload,
		Header: nats.Header{
			jetstream.MsgIDHeader:      {m.idPrefix + task + m.idSuffix},
			dispatcher.HeaderTaskID:    {task},
			dispatcher.HeaderKind:      m.kind,
			dispatcher.HeaderAttempt:   m.attempt,
			dispatcher.HeaderCreatedAt: m.created,
		},
	}
}
