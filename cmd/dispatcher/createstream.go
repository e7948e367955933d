package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// streamCreator makes the stream of --create-stream once the broker answers.
type streamCreator struct {
	nc     *nats.Conn
	cfg    dispatcher.Config
	logger *slog.Logger
	reason string
}

// createTimeout bounds one attempt; a cluster takes seconds to place a stream.
const createTimeout = 5 * time.Second

// try reports whether the stream exists now.
func (c *streamCreator) try(ctx context.Context) bool {
	if !c.nc.IsConnected() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	err := c.create(ctx)
	if err == nil {
		return true
	}
	if text := errorText(err); text != c.reason {
		c.reason = text
		c.logger.Error("cannot create the stream, trying again", "error", text)
	}
	return false
}

func (c *streamCreator) create(ctx context.Context) error {
	js, err := newJetStream(c.nc, c.cfg)
	if err != nil {
		return err
	}
	before, err := c.names(ctx, js)
	if err != nil {
		return err
	}
	if err := dispatcher.CreateStream(ctx, js, c.cfg.Prefix, c.cfg.Stream); err != nil {
		return err
	}
	after, err := c.names(ctx, js)
	if err != nil {
		return err
	}
	for _, name := range after {
		if !slices.Contains(before, name) {
			c.logger.Info("created the stream", "stream", name, "subjects", c.cfg.Prefix+".>")
		}
	}
	return nil
}

// names lists the streams of our subjects, or the one of --stream.
func (c *streamCreator) names(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	if c.cfg.Stream != "" {
		_, err := js.Stream(ctx, c.cfg.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, nil
		}
		return []string{c.cfg.Stream}, err
	}
	var names []string
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(c.cfg.Prefix+".>"))
	for info := range list.Info() {
		names = append(names, info.Config.Name)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the streams of %s.>: %w", c.cfg.Prefix, err)
	}
	return names, nil
}

// run tries until the stream exists or ctx ends: at each change of the
// connection, and every few seconds while it stands.
func (c *streamCreator) run(ctx context.Context) {
	changes := c.nc.StatusChanged(nats.CONNECTED)
	defer c.nc.RemoveStatusListener(changes)
	again := time.NewTicker(createTimeout)
	defer again.Stop()
	for !c.try(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-again.C:
		}
	}
}

func newJetStream(nc *nats.Conn, cfg dispatcher.Config) (jetstream.JetStream, error) {
	switch {
	case cfg.JetStreamDomain != "":
		return jetstream.NewWithDomain(nc, cfg.JetStreamDomain)
	case cfg.JetStreamAPIPrefix != "":
		return jetstream.NewWithAPIPrefix(nc, cfg.JetStreamAPIPrefix)
	}
	return jetstream.New(nc)
}
