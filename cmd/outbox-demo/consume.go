package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// prefix is the dispatcher's default: subjects are prefix.kind.
const prefix = "outbox"

// subscription reads the whole stream, from its first message on.
type subscription struct {
	stream jetstream.Stream
	read   jetstream.ConsumeContext
	// last is the stream sequence of the last message that was handled.
	last atomic.Uint64
	// handled has a token after each message.
	handled chan struct{}
}

// subscribe waits for the dispatcher to create the stream, and records every
// message of it.
func subscribe(ctx context.Context, s *stack, book *ledger) (*subscription, error) {
	stream, err := awaitStream(ctx, s)
	if err != nil {
		return nil, err
	}
	sub := &subscription{stream: stream, handled: make(chan struct{}, 1)}
	// What is stored counts, not what is on the wire: an ordered consumer
	// delivers each message of the stream once, and says so if it cannot.
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("consume the stream: %w", err)
	}
	sub.read, err = consumer.Consume(func(m jetstream.Msg) { sub.handle(m, book) })
	if err != nil {
		return nil, fmt.Errorf("consume the stream: %w", err)
	}
	return sub, nil
}

func (s *subscription) handle(m jetstream.Msg, book *ledger) {
	now := time.Now()
	if id, err := strconv.ParseInt(m.Headers().Get("Outbox-Task-Id"), 10, 64); err == nil {
		book.arrive(id, now)
	} else {
		book.stray()
	}
	if meta, err := m.Metadata(); err == nil {
		s.last.Store(meta.Sequence.Stream)
	}
	select {
	case s.handled <- struct{}{}:
	default:
	}
}

// awaitStream returns the stream once it exists. Nothing tells of a new stream,
// so it has to ask.
func awaitStream(ctx context.Context, s *stack) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("the dispatcher has not created a stream for %s.> within %v", prefix, patience))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		name, err := s.js.StreamNameBySubject(ctx, prefix+".>")
		if err == nil {
			return s.js.Stream(ctx, name)
		}
		select {
		case <-tick.C:
		case <-s.dispatcher.Done():
			return nil, errors.Join(errors.New("the dispatcher ended by itself"), s.dispatcher.Err())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// finish returns when everything that the stream holds has been handled.
func (s *subscription) finish(ctx context.Context) error {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask for the length of the stream: %w", err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for s.last.Load() < info.State.LastSeq {
		select {
		case <-s.handled:
			timer.Reset(patience)
		case <-timer.C:
			return fmt.Errorf("message %d of %d of the stream is the last that came within %v",
				s.last.Load(), info.State.LastSeq, patience)
		}
	}
	return nil
}

func (s *subscription) stop() { s.read.Stop() }
