package dispatcher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// ErrBrokerClosed is wrapped by the error of Run when the NATS connection was
// closed for good: by its owner, or by a server that called it broken.
var ErrBrokerClosed = errors.New("the NATS connection is closed")

// Dispatcher publishes the tasks of one outbox. Make it with [New].
type Dispatcher struct {
	cfg      Config
	log      *slog.Logger
	table    *table
	canary   string
	channel  string
	retry    backoff
	wake     *wakeState
	circuit  *circuit
	streams  *streams
	pub      publisher // set by Run once the source's name is known
	explains explanations
	// wrap, in tests, puts a publisher between that spoils answers.
	wrap func(publisher) publisher

	wakes signal // there may be fresh work
	look  signal // look at the whole table
	nudge signal // something changed that the loop waits on
	slots chan struct{}
	work  chan *claim
	// fit is how many tasks to ask for, so that their bodies fit.
	fit atomic.Int64
	// careful counts the tasks still to be claimed one by one after a claim
	// could not be settled, to find the one to blame.
	careful atomic.Int64
	// unsettled counts settlements that failed in a row.
	unsettled atomic.Int64

	mu       sync.Mutex
	database error
	running  bool
}

// New checks the settings and returns a dispatcher that does nothing until
// [Dispatcher.Run]. The error names each setting that is missing or out of
// range. New does not connect.
func New(cfg Config) (*Dispatcher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("dispatcher settings: %w", err)
	}
	js, err := newJetStream(cfg)
	if err != nil {
		return nil, fmt.Errorf("dispatcher settings: JetStream: %w", err)
	}
	d := &Dispatcher{
		cfg:     cfg,
		log:     cfg.Logger,
		table:   newTable(cfg.Pool, cfg.Schema, cfg.PublishTimeout),
		canary:  canaryPrefix + rand.Text(),
		channel: channelName(cfg.Schema),
		retry:   backoff{min: cfg.RetryMin, max: cfg.RetryMax},
		streams: &streams{
			js: js, prefix: cfg.Prefix, only: cfg.Stream,
			span: retrySpan(cfg.PublishTimeout), broker: cfg.NATS.MaxPayload,
		},
		wakes: newSignal(), look: newSignal(), nudge: newSignal(),
		slots: make(chan struct{}, cfg.Workers),
		work:  make(chan *claim),
	}
	d.fit.Store(int64(cfg.Batch))
	d.wake = newWakeState(cfg.Wake, d.wakeChanged)
	d.circuit = newCircuit(d.circuitChanged)
	return d, nil
}

// retrySpan is how long after a lost acknowledgement the resend may come: the
// server ends a frozen transaction after twice the publish timeout, the
// circuit probes every five seconds, a killed process is restarted.
func retrySpan(publishTimeout time.Duration) time.Duration { return 2*publishTimeout + 35*time.Second }

// Run publishes tasks until ctx ends, then finishes the claims in hand, and
// returns nil. It returns an error only for what waiting cannot cure: no
// outbox in the schema, a role without rights, a NATS connection closed for
// good. It waits for a database or a broker that is not there yet. All
// goroutines that it started have ended when it returns. Call it once.
func (d *Dispatcher) Run(ctx context.Context) error {
	source, err := d.awaitSource(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	js, err := newJetStream(d.cfg)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	defer js.CleanupPublisher()
	pub := newNATSPublisher(d.cfg, js, source, d.streams)
	d.pub = pub
	if d.wrap != nil {
		d.pub = d.wrap(pub)
	}
	defer d.watchErrors(pub)()

	// Two contexts: ctx means stop claiming. What is in hand runs on until
	// it is finished, or the drain timeout is over.
	inHand, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	defer context.AfterFunc(ctx, func() {
		d.log.Info("stopping: finishing the claims in hand", "timeout", d.cfg.DrainTimeout)
		time.AfterFunc(d.cfg.DrainTimeout, abandon)
	})()

	g, claiming := errgroup.WithContext(ctx)
	g.Go(func() error { return d.watchBroker(claiming) })
	if d.cfg.Wake == WakeNotify {
		g.Go(func() error {
			d.supervise(claiming, &Listen{Config: d.cfg.Listen, Channel: d.channel, Canary: d.canary, OnCanary: d.wake.heard})
			return nil
		})
	}
	g.Go(func() error {
		defer close(d.work)
		d.loop(claiming, inHand)
		return nil
	})
	for range d.cfg.Workers {
		g.Go(func() error {
			for c := range d.work {
				d.deliver(inHand, c)
				if c.cut {
					d.look.notify()
				}
				<-d.slots
				d.nudge.notify()
			}
			return nil
		})
	}
	d.setRunning(true)
	defer d.setRunning(false)
	d.log.Info("dispatching", "schema", d.cfg.Schema, "prefix", d.cfg.Prefix, "source", source, "wake", d.cfg.Wake)
	err = g.Wait()
	d.log.Info("stopped")
	return err
}

// awaitSource waits until the database tells the name of this outbox.
func (d *Dispatcher) awaitSource(ctx context.Context) (string, error) {
	retry := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	for n := 1; ; n++ {
		name, err := d.table.source(ctx)
		if err == nil {
			d.databaseOK()
			return name, nil
		}
		if ctx.Err() != nil {
			return "", nil //nolint:nilerr // stopping is not failing
		}
		if fatal := startupError(d.cfg.Schema, err); fatal != nil {
			return "", fatal
		}
		d.databaseFailed(err)
		sleep(ctx, retry.delay(n))
	}
}

// watchErrors listens for permission violations, which the server reports on
// the connection and not on the message. It returns how to stop.
func (d *Dispatcher) watchErrors(pub *natsPublisher) (stop func()) {
	before := d.cfg.NATS.ErrorHandler()
	d.cfg.NATS.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if subject, ok := deniedSubject(err); ok {
			pub.denied.note(subject)
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

// Health returns a snapshot of the dispatcher's state. It asks nobody and may
// be called at any time from any goroutine.
func (d *Dispatcher) Health() Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Health{
		Database: d.database,
		Running:  d.running,
		Wake:     d.wake.snapshot(),
		Circuit:  d.circuit.snapshot(),
		Stream:   d.streams.snapshot(),
	}
}

func (d *Dispatcher) setRunning(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = on
}

// databaseFailed notes and, if it is news, logs that the database cannot be used.
func (d *Dispatcher) databaseFailed(err error) {
	d.mu.Lock()
	news := d.database == nil
	d.database = err
	d.mu.Unlock()
	if news {
		d.log.Warn("the database cannot be used, trying again", "error", err)
	}
}

func (d *Dispatcher) databaseOK() {
	d.mu.Lock()
	news := d.database != nil
	d.database = nil
	d.mu.Unlock()
	if news {
		d.log.Info("the database is back")
	}
}

func (d *Dispatcher) wakeChanged(h WakeHealth) {
	if h.Healthy {
		d.log.Info("wakes arrive", "source", h.Source)
	} else {
		d.log.Warn("wakes do not arrive, polling", "source", h.Source, "every", d.cfg.PollInterval, "reason", h.Detail)
	}
	d.nudge.notify()
}

func (d *Dispatcher) circuitChanged(h CircuitHealth) {
	if h.Open {
		d.log.Warn("the broker is unavailable, nothing is claimed", "error", h.Cause)
	} else {
		d.log.Info("the broker answers")
	}
	d.nudge.notify()
}
