package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// explain finds out what silence meant. A subject that no stream captures, while
// others have one, is that task's own trouble; anything else is the broker's.
func (p *natsPublisher) explain(ctx context.Context, tasks []Task, results []Result) {
	const maxSubjects = 16
	ctx, cancel := context.WithTimeout(ctx, p.askTimeout)
	defer cancel()
	known := map[string]Result{}
	for i := range results {
		r := &results[i]
		if r.Outcome != Unavailable || !silent(r.Err) || !p.nc.IsConnected() {
			continue
		}
		subject := p.subject(&tasks[i])
		verdict, ok := known[subject]
		if !ok {
			if len(known) >= maxSubjects || ctx.Err() != nil {
				continue
			}
			verdict = p.ask(ctx, subject, *r)
			known[subject] = verdict
		}
		if verdict.Outcome == Refused {
			*r = verdict
		}
	}
}

func (p *natsPublisher) ask(ctx context.Context, subject string, r Result) Result {
	_, err := p.js.StreamNameBySubject(ctx, subject)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return r
	}
	// "No stream for anything" is an outage; tasks must not pay for it.
	if some, err := p.streams.any(ctx); err != nil || !some {
		return r
	}
	return Result{Outcome: Refused, Acked: r.Acked, Err: fmt.Errorf("no stream captures subject %q: create one or add the subject to one", subject)}
}

// same implements publisher. It reads the stored message.
func (p *natsPublisher) same(ctx context.Context, t *Task, r *Result) bool {
	ctx, cancel := context.WithTimeout(ctx, p.askTimeout)
	defer cancel()
	stream, err := p.js.Stream(ctx, r.stream)
	if err != nil {
		return false
	}
	m, err := stream.GetMsg(ctx, r.seq)
	if err != nil {
		return false
	}
	return m.Subject == p.subject(t) &&
		m.Header.Get(HeaderTaskID) == strconv.FormatInt(t.ID, 10) &&
		m.Header.Get(HeaderCreatedAt) == t.CreatedAt.UTC().Format(createdAtLayout) &&
		string(m.Data) == string(t.Body)
}
