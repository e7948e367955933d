package dispatcher

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamCheck says what [CheckStreams] compares the streams with.
type StreamCheck struct {
	// Prefix and Stream are those of [Config].
	Prefix, Stream string
	// MaxPayload is the broker's max_payload in bytes; 0 skips the comparison.
	MaxPayload int64
	// RetrySpan is the longest time between a lost acknowledgement and the
	// resend: the duplicate window must be longer. 0 skips the comparison.
	RetrySpan time.Duration
}

// CheckStreams asks the broker which streams capture the subjects below
// check.Prefix and reports what is wrong with them, errors first, each in one
// line with the remedy. The error is about asking, not about the streams.
func CheckStreams(ctx context.Context, js jetstream.JetStream, check StreamCheck) ([]Finding, error) {
	infos, err := streamInfos(ctx, js, check.Prefix, check.Stream)
	if err != nil {
		return nil, err
	}
	return checkStreams(infos, check), nil
}

// createdWindow is the duplicate window of a stream that we create.
const createdWindow = 10 * time.Minute

// CreateStream creates a stream for all subjects below prefix with settings
// that keep the dispatcher's promises on one server: file storage, old
// messages kept until a limit that refuses new ones, a duplicate window of ten
// minutes. It leaves an existing stream as it is. Name defaults to the prefix in
// upper case, dots replaced.
func CreateStream(ctx context.Context, js jetstream.JetStream, prefix, name string) error {
	infos, err := streamInfos(ctx, js, prefix, name)
	if err != nil {
		return err
	}
	if len(infos) > 0 {
		return nil
	}
	if name == "" {
		name = strings.ToUpper(strings.ReplaceAll(prefix, ".", "_"))
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:       name,
		Subjects:   []string{prefix + ".>"},
		Storage:    jetstream.FileStorage,
		Retention:  jetstream.LimitsPolicy,
		Discard:    jetstream.DiscardNew,
		Duplicates: createdWindow,
	})
	if err != nil {
		return fmt.Errorf("create stream %q for %s.>: %w", name, prefix, err)
	}
	return nil
}

func checkStreams(infos []*jetstream.StreamInfo, check StreamCheck) []Finding {
	if len(infos) == 0 {
		text := fmt.Sprintf("no stream captures %s.>: create one", check.Prefix)
		if check.Stream != "" {
			text = fmt.Sprintf("stream %q does not exist: create it", check.Stream)
		}
		return []Finding{{Severity: SeverityError, Check: "exists", Text: text}}
	}
	var errs, warnings []Finding
	for _, i := range infos {
		found := checkStream(&i.Config, check)
		if full := fullStream(i); full != "" {
			found = append(found, Finding{Severity: SeverityWarning, Check: "full", Text: full})
		}
		for _, f := range found {
			f.Stream = i.Config.Name
			if f.Severity == SeverityError {
				errs = append(errs, f)
			} else {
				warnings = append(warnings, f)
			}
		}
	}
	return append(errs, warnings...)
}

// fullStream says that a stream refuses new messages for want of room, or "".
func fullStream(i *jetstream.StreamInfo) string {
	c := &i.Config
	if c.Discard != jetstream.DiscardNew {
		return ""
	}
	const text = "stream %s is full (%s of %d): tasks are refused and become dead letters in the end; make room or raise %s"
	if c.MaxMsgs > 0 && i.State.Msgs >= uint64(c.MaxMsgs) {
		return fmt.Sprintf(text, c.Name, "messages", c.MaxMsgs, "max_msgs")
	}
	if c.MaxBytes > 0 && i.State.Bytes+1024 >= uint64(c.MaxBytes) {
		return fmt.Sprintf(text, c.Name, "bytes", c.MaxBytes, "max_bytes")
	}
	return ""
}

// checkStream is one line per rule, each with the reason why it matters.
func checkStream(c *jetstream.StreamConfig, check StreamCheck) (found []Finding) {
	report := func(severity Severity, name, format string, a ...any) {
		found = append(found, Finding{Severity: severity, Check: name, Text: "stream " + c.Name + " " + fmt.Sprintf(format, a...)})
	}
	if check.Stream != "" && !captures(c.Subjects, check.Prefix) {
		report(SeverityWarning, "exists", "captures no subject of %s.>: add it to the stream's subjects, unless the account maps them", check.Prefix)
	}
	if c.NoAck {
		report(SeverityError, "no-ack", "does not acknowledge (no_ack): every task would be resent for ever; set no_ack to false")
	}
	if c.Sealed {
		report(SeverityError, "sealed", "is sealed and takes no message: name another stream for %s.>", check.Prefix)
	}
	if c.Mirror != nil {
		report(SeverityError, "mirror", "is a mirror and takes no message: publish to its origin")
	}
	if c.Duplicates <= 0 {
		report(SeverityWarning, "window", "has no duplicate window: a task resent after a crash is stored twice; set duplicate_window to %v or more", createdWindow)
	} else if c.Duplicates < check.RetrySpan {
		report(SeverityWarning, "window", "has a duplicate window of %v, a resend may come %v after the first copy: set duplicate_window to %v or more",
			c.Duplicates, check.RetrySpan, check.RetrySpan)
	}
	if c.Retention == jetstream.InterestPolicy {
		report(SeverityWarning, "retention", "keeps messages by interest: it acknowledges, but does not store, what no consumer asks for; use limits or workqueue")
	}
	if c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0) {
		report(SeverityWarning, "discard", "drops the oldest message at its limit, read or not (discard old): set discard to new")
	}
	if c.PersistMode == jetstream.AsyncPersistMode {
		report(SeverityWarning, "persist", "acknowledges before it writes (persist_mode async): a crash of the broker loses tasks that count as sent; use the default mode")
	}
	if c.Storage == jetstream.MemoryStorage {
		report(SeverityWarning, "storage", "is kept in memory: a restart of the broker loses tasks that count as sent; use file storage")
	}
	if c.MaxMsgSize > 0 && check.MaxPayload > 0 && int64(c.MaxMsgSize) < check.MaxPayload {
		report(SeverityWarning, "max-size", "takes messages of at most %d bytes, the broker %d: larger tasks become dead letters; raise max_msg_size if they are wanted",
			c.MaxMsgSize, check.MaxPayload)
	}
	return found
}

// captures reports whether one of the stream's subjects lies below, or covers
// part of, prefix.>.
func captures(subjects []string, prefix string) bool {
	want := strings.Split(prefix, ".")
	for _, s := range subjects {
		have := strings.Split(s, ".")
		match := true
		for i, token := range have {
			if token == ">" {
				break
			}
			if i >= len(want) {
				break
			}
			if token != "*" && token != want[i] {
				match = false
				break
			}
		}
		if match && (len(have) > len(want) || have[len(have)-1] == ">") {
			return true
		}
	}
	return false
}
