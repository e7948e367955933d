package main

import (
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"
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
