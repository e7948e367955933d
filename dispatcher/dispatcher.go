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
	wake     *wakes
	circuit  *circuit
	streams  *streams
	pub      publisher // set by Run once the source's name is known
	explains explanations
	refusals sparing
	// wrap, in tests, puts a publisher between that spoils answers.
	wrap func(publisher) publisher
	// eager, in tests, masks the notifications whenever there is work.
	eager bool
	// standDown is standDownAfter but in tests.
	standDown time.Duration

	wakes wakeSignal // there may be fresh work
	look  signal     // look at the whole table
	cover signal     // look for what may have been skipped, see mask
	nudge signal     // something changed that the loop waits on
	doubt signal     // the streams should be looked at
	slots chan struct{}
	work  chan *claim
	// fit is how many tasks to ask for, so that their bodies fit.
	fit atomic.Int64
	// careful counts the tasks still to be claimed one by one after a claim
	// could not be settled, to find the one to blame.
	careful atomic.Int64
	// unsettled counts settlements that failed in a row.
	unsettled atomic.Int64

	started  atomic.Bool
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
		cfg: cfg,
		log: cfg.Logger, standDown: standDownAfter,
		table:   newTable(cfg.Pool, cfg.Schema, cfg.PublishTimeout),
		canary:  canaryPrefix + rand.Text(),
		channel: channelName(cfg.Schema),
		retry:   backoff{min: cfg.RetryMin, max: cfg.RetryMax},
		streams: &streams{
			js: js, prefix: cfg.Prefix, only: cfg.Stream,
			span: retrySpan(cfg.PublishTimeout), broker: cfg.NATS.MaxPayload, denied: newDenials(),
		},
		wakes: make(wakeSignal, 1), look: newSignal(), cover: newSignal(), nudge: newSignal(), doubt: newSignal(),
		slots: make(chan struct{}, cfg.Workers),
		work:  make(chan *claim),
	}
	d.fit.Store(int64(cfg.Batch))
	d.table.held.retry = backoff{min: 10 * time.Second, max: max(cfg.RetryMax, 10*time.Second)}
	d.table.muted.retry = backoff{min: time.Second, max: 5 * time.Second}
	d.wake = newWakes(cfg.Wake, d.wakeChanged)
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
// goroutines that it started have ended when it returns. A second call is an
// error.
func (d *Dispatcher) Run(ctx context.Context) error {
	if d.started.Swap(true) {
		return errors.New("this dispatcher has run already: make another with New")
	}
	source, err := d.awaitSource(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	js, err := newJetStream(d.cfg)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	defer js.CleanupPublisher()
	d.pub = newNATSPublisher(d.cfg, js, source, d.streams)
	if d.wrap != nil {
		d.pub = d.wrap(d.pub)
	}
	defer d.watchErrors()()

	d.setRunning(true)
	defer d.setRunning(false)
	d.log.Info("dispatching", "schema", d.cfg.Schema, "prefix", d.cfg.Prefix, "source", source, "wake", d.cfg.Wake)
	err = d.dispatch(ctx)
	d.log.Info("stopped")
	return err
}

// dispatch starts every goroutine and waits for all of them.
func (d *Dispatcher) dispatch(ctx context.Context) error {
	// Two contexts: ctx means stop claiming. What is in hand runs on until
	// it is finished, or the drain timeout is over.
	inHand, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()

	finished := make(chan struct{}) // closed when no claim is in hand any more
	g, claiming := errgroup.WithContext(ctx)
	g.Go(func() error { return d.watchBroker(claiming) })
	g.Go(func() error {
		d.follow(claiming)
		return nil
	})
	g.Go(func() error {
		defer close(d.work)
		d.loop(claiming, inHand)
		return nil
	})
	g.Go(func() error {
		<-claiming.Done()
		d.log.Info("stopping: finishing the claims in hand", "timeout", d.cfg.DrainTimeout)
		d.giveUp(finished, abandon)
		return nil
	})
	var workers sync.WaitGroup
	for range d.cfg.Workers {
		workers.Go(func() {
			for c := range d.work {
				d.deliver(inHand, c)
				if c.cut {
					d.look.notify()
				}
				<-d.slots
				d.nudge.notify()
			}
		})
	}
	g.Go(func() error {
		workers.Wait()
		close(finished)
		return nil
	})
	return g.Wait()
}

// giveUp abandons the claims in hand if they are not finished in time.
func (d *Dispatcher) giveUp(finished <-chan struct{}, abandon context.CancelFunc) {
	patience := time.NewTimer(d.cfg.DrainTimeout)
	defer patience.Stop()
	select {
	case <-finished:
	case <-patience.C:
		d.log.Warn("the claims in hand were not finished in time, their tasks are sent again")
		abandon()
	}
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

// Health returns a snapshot of the dispatcher's state. It asks nobody and may
// be called at any time from any goroutine.
func (d *Dispatcher) Health() Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Health{
		Database: d.database,
		Running:  d.running,
		Wake:     d.wake.snapshot(),
		Sources:  d.wake.sources(),
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
	switch {
	case h.Healthy && h.Detail != "":
		d.log.Warn("wakes arrive, with a remark", "source", h.Source, "remark", h.Detail)
	case h.Healthy:
		d.log.Info("wakes arrive", "source", h.Source)
	default:
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
