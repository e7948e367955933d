package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streams knows which streams may acknowledge our messages. It is read for each
// acknowledgement and refreshed rarely.
type streams struct {
	js     jetstream.JetStream
	prefix string
	only   string // the configured stream, or ""
	span   time.Duration
	broker func() int64 // max_payload
	denied *denials

	mu       sync.Mutex
	names    map[string]bool
	known    bool // names came from the server
	findings []Finding
	checked  time.Time
}

// ours reports whether an acknowledgement from the stream counts. A name that
// we do not know may be that of a new stream: then the server is asked again, at
// most once per second. Without the right to list streams, every name counts.
func (s *streams) ours(ctx context.Context, name string) bool {
	if s.only != "" {
		return name == s.only
	}
	ok, fresh := s.lookUp(name)
	if ok || fresh {
		return ok
	}
	_, _ = s.refresh(ctx)
	ok, _ = s.lookUp(name)
	return ok
}

func (s *streams) lookUp(name string) (ok, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.known || s.names[name], time.Since(s.checked) < time.Second
}

// any asks the server whether some stream captures a subject of ours.
func (s *streams) any(ctx context.Context) (bool, error) {
	infos, err := streamInfos(ctx, s.js, s.prefix, s.only)
	return len(infos) > 0, err
}

func (s *streams) stale(age time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.checked) > age
}

func (s *streams) snapshot() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.findings)
}

// refresh reads the streams anew. It returns an error if none can take a
// message, or if the broker could not be asked for a reason other than a
// lack of permission (which looks like a timeout, and leaves us in the dark).
func (s *streams) refresh(ctx context.Context) (changed []Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	begun := time.Now()
	infos, err := streamInfos(ctx, s.js, s.prefix, s.only)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = time.Now()
	var findings []Finding
	switch {
	case err == nil:
		findings = checkStreams(infos, StreamCheck{Prefix: s.prefix, Stream: s.only, MaxPayload: s.broker(), RetrySpan: s.span})
		s.names, s.known = map[string]bool{}, true
		for _, i := range infos {
			s.names[i.Config.Name] = true
		}
		err = unusable(infos, findings)
	case timedOut(err) && s.denied.beside(s.prefix, begun):
		findings = []Finding{{
			Severity: SeverityWarning, Check: "exists", Stream: s.only,
			Text: "the streams cannot be checked: grant the dispatcher's user publish on $JS.API.STREAM.LIST, .NAMES and .INFO.*",
		}}
		s.known, err = false, nil
	default:
		return nil, err
	}
	for _, f := range findings {
		if !slices.Contains(s.findings, f) {
			changed = append(changed, f)
		}
	}
	s.findings = findings
	return changed, err
}

// timedOut tells silence, which a missing permission causes, from an answer.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// unusable returns an error if every stream has a finding that stops tasks.
func unusable(infos []*jetstream.StreamInfo, findings []Finding) error {
	if len(infos) == 0 {
		return errors.New(findings[0].Text)
	}
	for _, i := range infos {
		if !slices.ContainsFunc(findings, func(f Finding) bool {
			return f.Severity == SeverityError && f.Stream == i.Config.Name
		}) {
			return nil
		}
	}
	for _, f := range findings {
		if f.Severity == SeverityError {
			return errors.New(f.Text)
		}
	}
	return nil
}

func streamInfos(ctx context.Context, js jetstream.JetStream, prefix, only string) ([]*jetstream.StreamInfo, error) {
	if only != "" {
		st, err := js.Stream(ctx, only)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read stream %q: %w", only, err)
		}
		return []*jetstream.StreamInfo{st.CachedInfo()}, nil
	}
	var infos []*jetstream.StreamInfo
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(prefix+".>"))
	for i := range list.Info() {
		infos = append(infos, i)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the streams of %s.>: %w", prefix, err)
	}
	slices.SortFunc(infos, func(a, b *jetstream.StreamInfo) int { return strings.Compare(a.Config.Name, b.Config.Name) })
	return infos, nil
}
