package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

// watermill is its SQL Pub/Sub as the outbox and its forwarder as the relay.
func watermill(name string, tuned bool) scenario.Peer {
	t, title := tables{}, "its defaults: looks once a second, 100 messages at a time"
	interval := time.Duration(0)
	if tuned {
		interval, t.batch = 5*time.Millisecond, 1000
		title = fmt.Sprintf("looks every %v, %d messages at a time", interval, t.batch)
	}
	return scenario.Peer{
		Name: name, Polls: true, Defaults: !tuned,
		Title: fmt.Sprintf("Watermill %s, SQL %s, NATS %s, forwarder, %s", version("github.com/ThreeDotsLabs/watermill"),
			version("github.com/ThreeDotsLabs/watermill-sql/v4"), version("github.com/ThreeDotsLabs/watermill-nats/v2"), title),
		Open: func(ctx context.Context, at scenario.Site) (scenario.Contender, error) {
			s, err := open(ctx, at, 10)
			if err != nil {
				return nil, err
			}
			f := &forwarding{site: s, tables: t, interval: interval}
			f.tables.schema = at.Schema
			return f, f.prepare(ctx)
		},
	}
}

// tables are where Watermill keeps messages and offsets.
type tables struct {
	schema string
	batch  int
}

func (t tables) messages() wmsql.DefaultPostgreSQLSchema {
	return wmsql.DefaultPostgreSQLSchema{
		SubscribeBatchSize:        t.batch,
		GenerateMessagesTableName: func(string) string { return pgx.Identifier{t.schema, "messages"}.Sanitize() },
	}
}

func (t tables) offsets() wmsql.DefaultPostgreSQLOffsetsAdapter {
	return wmsql.DefaultPostgreSQLOffsetsAdapter{
		GenerateMessagesOffsetsTableName: func(string) string { return pgx.Identifier{t.schema, "offsets"}.Sanitize() },
	}
}

// forwarding is Watermill on a site.
type forwarding struct {
	*site
	tables   tables
	interval time.Duration // between two looks, 0: the default
}

// topic is that of the outbox.
const topic = "outbox"

// subscriber reads the outbox.
func (f *forwarding) subscriber() (*wmsql.Subscriber, error) {
	return wmsql.NewSubscriber(wmsql.BeginnerFromPgx(f.pool), wmsql.SubscriberConfig{
		SchemaAdapter: f.tables.messages(), OffsetsAdapter: f.tables.offsets(), PollInterval: f.interval, InitializeSchema: true,
	}, wm.NopLogger{})
}

// prepare makes the tables, as the subscriber does when it begins.
func (f *forwarding) prepare(context.Context) error {
	s, err := f.subscriber()
	if err != nil {
		return fmt.Errorf("make a subscriber: %w", err)
	}
	err = s.SubscribeInitialize(topic)
	return errors.Join(err, s.Close())
}

// Producer implements [scenario.Contender].
func (f *forwarding) Producer(ctx context.Context) (scenario.Producer, error) {
	return f.connect(ctx, func(_ context.Context, tx pgx.Tx, payload scenario.Payload) error { return f.enqueue(tx, payload) })
}

// enqueue publishes to the outbox within a transaction.
func (f *forwarding) enqueue(tx pgx.Tx, payloads ...scenario.Payload) error {
	p, err := wmsql.NewPublisher(wmsql.TxFromPgx(tx), wmsql.PublisherConfig{SchemaAdapter: f.tables.messages()}, wm.NopLogger{})
	if err != nil {
		return err
	}
	messages := make([]*message.Message, len(payloads))
	for i, payload := range payloads {
		text, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		messages[i] = message.NewMessage(f.Name+"."+strconv.FormatInt(payload.Number, 10), text)
	}
	return forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: topic}).Publish(f.Subject, messages...)
}

// Fill implements [scenario.Contender].
func (f *forwarding) Fill(ctx context.Context, n int) error {
	const batch = 10_000
	for from := 0; from < n; from += batch {
		var payloads []scenario.Payload
		for i := range min(batch, n-from) {
			payloads = append(payloads, scenario.NewPayload(int64(from+i+1)))
		}
		err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return f.enqueue(tx, payloads...) })
		if err != nil {
			return fmt.Errorf("insert %d messages: %w", n, err)
		}
	}
	return nil
}

// Run implements [scenario.Contender].
func (f *forwarding) Run(ctx context.Context) error {
	in, err := f.subscriber()
	if err != nil {
		return fmt.Errorf("make a subscriber: %w", err)
	}
	out, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: f.NATSURL, JetStream: wmnats.JetStreamConfig{TrackMsgId: true}}, wm.NopLogger{})
	if err != nil {
		return fmt.Errorf("make a publisher: %w", err)
	}
	fw, err := forwarder.NewForwarder(in, out, wm.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
	if err != nil {
		return fmt.Errorf("make a forwarder: %w", err)
	}
	err = fw.Run(ctx)
	return errors.Join(err, in.Close(), out.Close())
}
