package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// publisher sends the tasks of one claim and says what became of each,
// index-aligned. It is an interface so that tests can lose, delay and forge
// answers.
type publisher interface {
	publish(ctx context.Context, tasks []Task, deadline time.Time) []Result
	// same reports whether the message that made r a duplicate is the task's own.
	same(ctx context.Context, t *Task, r *Result) bool
}

var (
	errAckLate   = errors.New("no acknowledgement in time")
	errTooLate   = errors.New("not published: this dispatcher was held up beyond its deadline")
	errForeign   = errors.New("acknowledged by a stream that is not ours")
	errNotOnline = errors.New("not connected to NATS")
)

// natsPublisher publishes on JetStream, asynchronously: the whole claim is
// sent, then all acknowledgements are awaited.
type natsPublisher struct {
	nc             *nats.Conn
	js             jetstream.JetStream // its own handle: one counter of pending acks each
	prefix, source string
	streams        *streams
	// askTimeout bounds all questions to the broker about one claim: they come
	// out of the time in which the claim's rows are locked.
	askTimeout time.Duration
	denied     *denials
	opts       []jetstream.PublishOpt
}

func newNATSPublisher(cfg Config, js jetstream.JetStream, source string, s *streams) *natsPublisher {
	p := &natsPublisher{nc: cfg.NATS, js: js, prefix: cfg.Prefix, source: source, streams: s, denied: s.denied, askTimeout: cfg.PublishTimeout / 5}
	// The client's own retries would reorder and publish after we gave up.
	p.opts = []jetstream.PublishOpt{jetstream.WithRetryAttempts(0), jetstream.WithStallWait(cfg.PublishTimeout / 2)}
	if cfg.Stream != "" {
		p.opts = append(p.opts, jetstream.WithExpectStream(cfg.Stream))
	}
	return p
}

// newJetStream makes the handle for publishing. The client has no ack timeout by
// default; ours leaves time, within the publish timeout, to ask why there was
// silence and to settle.
func newJetStream(cfg Config) (jetstream.JetStream, error) {
	opts := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncTimeout(ackTimeout(cfg.PublishTimeout)),
		jetstream.WithPublishAsyncMaxPending(cfg.Batch * (cfg.Workers + 1)),
		jetstream.WithDefaultTimeout(cfg.PublishTimeout / 5),
	}
	switch {
	case cfg.JetStreamDomain != "":
		return jetstream.NewWithDomain(cfg.NATS, cfg.JetStreamDomain, opts...)
	case cfg.JetStreamAPIPrefix != "":
		return jetstream.NewWithAPIPrefix(cfg.NATS, cfg.JetStreamAPIPrefix, opts...)
	}
	return jetstream.New(cfg.NATS, opts...)
}

func ackTimeout(publishTimeout time.Duration) time.Duration { return publishTimeout * 3 / 5 }

func (p *natsPublisher) publish(ctx context.Context, tasks []Task, deadline time.Time) []Result {
	results := make([]Result, len(tasks))
	futures := make([]jetstream.PubAckFuture, len(tasks))
	begun := time.Now()
	w, limit := waiting{begun: begun, denied: p.denied.next()}, fetchLimit(p.nc)
	for i := range tasks {
		futures[i], results[i] = p.send(&tasks[i], deadline, limit)
		if i == 0 {
			failpoint("after-first-publish")
		}
	}
	expire := time.NewTimer(ackTimeout(time.Until(deadline)) * 21 / 20)
	defer expire.Stop()
	w.expire = expire.C
	for i := range tasks {
		if f := futures[i]; f != nil {
			results[i] = p.await(ctx, f, &tasks[i], &w)
		}
		if i == len(futures)/2 {
			failpoint("after-some-acks")
		}
	}
	p.explain(ctx, tasks, results)
	return results
}

func (p *natsPublisher) subject(t *Task) string { return p.prefix + "." + t.Kind }

// send hands one message to the client. A nil future comes with the result.
func (p *natsPublisher) send(t *Task, deadline time.Time, limit int64) (jetstream.PubAckFuture, Result) {
	// A process that was frozen must not publish what others may have sent
	// meanwhile: by then the server has given the rows back.
	if now := time.Now(); now.After(deadline) {
		return nil, Result{Outcome: Unavailable, Err: errTooLate, Acked: now}
	}
	if int64(t.size) > limit {
		return nil, rejected(fmt.Errorf("body of %d bytes: the broker takes at most %d (max_payload), headers included; send a reference instead", t.size, limit))
	}
	msg, err := message(p.prefix, p.source, t)
	if err != nil {
		return nil, rejected(err)
	}
	if size := wireSize(msg); int64(size) > limit {
		return nil, rejected(fmt.Errorf("message of %d bytes, headers included: the broker takes at most %d (max_payload); send a reference instead", size, limit))
	}
	f, err := p.js.PublishMsgAsync(msg, p.opts...)
	if err != nil {
		return nil, Result{Outcome: classify(err), Err: fmt.Errorf("publish: %w", err), Acked: time.Now(), local: true}
	}
	return f, Result{}
}

func rejected(err error) Result {
	return Result{Outcome: Rejected, Err: err, Acked: time.Now(), local: true}
}

// fetchLimit is the largest body worth reading from the database.
func fetchLimit(nc *nats.Conn) int64 {
	if limit := nc.MaxPayload(); limit > 0 {
		return limit
	}
	return 1 << 20 // never connected yet: the server's default
}

// waiting is what the acknowledgements of one claim wait for besides themselves.
type waiting struct {
	begun  time.Time
	expire <-chan time.Time
	late   bool            // expire has fired
	denied <-chan struct{} // closed at a violation of permissions, of any subject
	check  bool            // there was one
	stream string          // the last stream that was found to be ours
}

// await waits for one acknowledgement. After the first late one, the others are
// only looked at, not waited for.
func (p *natsPublisher) await(ctx context.Context, f jetstream.PubAckFuture, t *Task, w *waiting) Result {
	stored, refused := f.Ok(), f.Err() // each call takes the client's lock
	for {
		// An answer that is there counts, whatever else happened.
		select {
		case ack := <-stored:
			return p.acked(ctx, ack, w)
		case err := <-refused:
			return failed(err)
		default:
		}
		if w.check && p.denied.since(p.subject(t), w.begun) {
			return Result{Outcome: Refused, Err: fmt.Errorf("NATS denies publishing on %q: grant the dispatcher's user that subject", p.subject(t)), Acked: time.Now()}
		}
		if w.late {
			return failed(errAckLate)
		}
		select {
		case ack := <-stored:
			return p.acked(ctx, ack, w)
		case err := <-refused:
			return failed(err)
		case <-ctx.Done():
			w.late = true
		case <-w.denied:
			w.check, w.denied = true, p.denied.next()
		case <-w.expire:
			w.late = true
		}
	}
}

func (p *natsPublisher) acked(ctx context.Context, ack *jetstream.PubAck, w *waiting) Result {
	r := Result{Acked: time.Now(), stream: ack.Stream, seq: ack.Sequence}
	if ack.Stream != w.stream && !p.streams.ours(ctx, ack.Stream) {
		// Any subscriber on the subject can answer, so this proves nothing.
		r.Outcome, r.Err = Refused, fmt.Errorf("%w: %q", errForeign, ack.Stream)
		return r
	}
	w.stream = ack.Stream
	if ack.Duplicate {
		r.Outcome = Duplicate
	}
	return r
}

func failed(err error) Result {
	return Result{Outcome: classify(err), Err: fmt.Errorf("publish: %w", err), Acked: time.Now()}
}
