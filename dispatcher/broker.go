package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// watchErrors listens for permission violations, which the server reports on
// the connection and not on the message. It returns how to stop.
func (d *Dispatcher) watchErrors() (stop func()) {
	before := d.cfg.NATS.ErrorHandler()
	d.cfg.NATS.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if subject, ok := deniedSubject(err); ok {
			d.streams.denied.note(subject)
		}
		if before != nil {
			before(nc, sub, err)
			return
		}
		d.log.Warn("NATS reports an error", "error", err)
	})
	return func() { d.cfg.NATS.SetErrorHandler(before) }
}

// watchBroker follows the connection: it opens the circuit when the connection
// is lost, asks for a probe when it is back, and checks the streams each minute.
func (d *Dispatcher) watchBroker(ctx context.Context) error {
	changes := d.cfg.NATS.StatusChanged()
	defer d.cfg.NATS.RemoveStatusListener(changes)
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	d.explains.note(time.Now())
	for {
		// The channel may have missed a change: ask for the state itself.
		switch {
		case d.cfg.NATS.IsClosed():
			err := d.cfg.NATS.LastError()
			if err == nil {
				return ErrBrokerClosed
			}
			return fmt.Errorf("%w: %w", ErrBrokerClosed, err)
		case !d.cfg.NATS.IsConnected():
			d.circuit.trip(errNotOnline)
		default:
			d.circuit.probeNow()
		}
		d.nudge.notify()
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-d.doubt:
			// Tasks are refused: a stream may be full, sealed or changed.
			if d.streams.stale(5 * time.Second) {
				_ = d.checkStreams(ctx)
			}
		case <-minute.C:
			if err := d.checkStreams(ctx); err != nil && ctx.Err() == nil {
				d.circuit.trip(err)
			}
		}
	}
}

// checkStreams reads the streams and logs what is newly wrong with them.
func (d *Dispatcher) checkStreams(ctx context.Context) error {
	changed, err := d.streams.refresh(ctx)
	for _, f := range changed {
		level := slog.LevelWarn
		if f.Severity == SeverityError {
			level = slog.LevelError
		}
		d.log.Log(ctx, level, "stream check", "finding", f.Text, "check", f.Check, "stream", f.Stream)
	}
	return err
}
