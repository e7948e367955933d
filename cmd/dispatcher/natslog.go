package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// maxReasons bounds the lines of one outage: some reasons name a port that is
// another one each time.
const maxReasons = 10

// natsLog logs the changes of the connection: an outage of an hour is two
// lines, and one more for each new reason. The client calls the handlers one
// at a time.
func natsLog(logger *slog.Logger) []nats.Option {
	reasons := map[string]bool{}
	up := func(nc *nats.Conn) {
		clear(reasons)
		logger.Info("connected to NATS", "url", nc.ConnectedUrlRedacted(), "version", nc.ConnectedServerVersion())
	}
	return []nats.Option{
		nats.ConnectHandler(up),
		nats.ReconnectHandler(up),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			// Without an error we closed it, or never had it.
			if err != nil && !nc.IsClosed() {
				logger.Warn("the NATS connection is lost, connecting again", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			// At a failed first connect the client says only that there is no
			// server; the reason comes with its next try.
			if errors.Is(err, nats.ErrNoServers) {
				return
			}
			if text := errorText(err); !reasons[text] && len(reasons) < maxReasons {
				reasons[text] = true
				logger.Warn("cannot connect to NATS, trying again", "error", text)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			logger.Warn("NATS reports an error", "error", err)
		}),
	}
}

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
	js, err := newJetStream(c.nc, c.cfg)
	if err == nil {
		err = dispatcher.CreateStream(ctx, js, c.cfg.Prefix, c.cfg.Stream)
	}
	if err == nil {
		return true
	}
	if text := errorText(err); text != c.reason {
		c.reason = text
		c.logger.Error("cannot create the stream, trying again", "error", text)
	}
	return false
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
