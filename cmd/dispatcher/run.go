package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// runCmd is "dispatcher run".
type runCmd struct {
	databaseFlags
	listenFlags
	natsFlags
	outboxFlags
	httpFlags
	logFlags
}

// outboxFlags are the dispatcher's own settings. The ranges are those that
// dispatcher.New enforces; they are repeated here to be shown in the help, and
// to be refused under the name of the flag. A test compares them.
type outboxFlags struct {
	Prefix       string `group:"Publishing" default:"${prefix}" help:"Put before the kind of each task, with a dot, to make its subject."`
	Stream       string `group:"Publishing" placeholder:"NAME" help:"The only stream whose acknowledgement counts. Default: any that captures subjects below --prefix."`
	CreateStream bool   `group:"Publishing" help:"Create a stream for --prefix if there is none, named by --stream or after the prefix. For trying things out: a stream in production is made by its operator."`

	Wake           dispatcher.WakeMode `group:"Dispatching" enum:"notify,wal,auto,poll" default:"notify" help:"How new tasks are noticed. notify: by LISTEN, at once. wal: by the write-ahead log, at once, without a trigger (needs wal_level=logical and REPLICATION). auto: the best of the others that works at the moment. poll: by looking every --poll-interval, and under load almost without a pause, without a trigger or a session connection."`
	Batch          int                 `group:"Dispatching" range:"1..10000" default:"${batch}" help:"Tasks that one claim takes at most."`
	BatchBytes     int                 `group:"Dispatching" range:"1024..1073741824" default:"${batch_bytes}" help:"Bytes of message bodies that one claim takes at most; a larger task is claimed alone. Memory grows with this times --workers."`
	Workers        int                 `group:"Dispatching" range:"1..64" default:"${workers}" help:"Claims in hand at once."`
	SweepInterval  time.Duration       `group:"Dispatching" range:"100ms..10m" default:"${sweep_interval}" help:"Time between looks at the whole table while wakes arrive."`
	PollInterval   time.Duration       `group:"Dispatching" range:"1ms..1m" default:"${poll_interval}" help:"The same while wakes do not arrive, and with --wake=poll."`
	PublishTimeout time.Duration       `group:"Dispatching" range:"100ms..5s" default:"${publish_timeout}" help:"Time to publish a claim, and so how long its rows stay locked."`
	DrainTimeout   time.Duration       `group:"Dispatching" range:"1s..10m" default:"${drain_timeout}" help:"Time to finish the claims in hand after a signal. Give the process more than that before it is killed."`
	MaxAttempts    int                 `group:"Dispatching" range:"1..1000000" default:"${max_attempts}" help:"Refusals by the broker after which a task becomes a dead letter. An outage is not a refusal."`
	RetryMin       time.Duration       `group:"Dispatching" range:"1ms..24h" default:"${retry_min}" help:"Wait after the first refusal of a task; it doubles with each further one."`
	RetryMax       time.Duration       `group:"Dispatching" range:"1ms..24h" default:"${retry_max}" help:"Longest wait after a refusal."`
}

// daemon is what Run has put together.
type daemon struct {
	cmd        *runCmd
	logger     *slog.Logger
	pool       *pgxpool.Pool
	nc         *nats.Conn
	dispatcher *dispatcher.Dispatcher
}

// Run dispatches until ctx ends. What is wrong with the settings, and what
// waiting does not cure, is returned; a database or a broker that is not there
// is waited for.
func (c *runCmd) Run(ctx context.Context, a *app, k *kong.Kong) error {
	logger := c.logger(a.stderr)
	if c.LogFormat == "json" {
		a.logger = logger
	}
	a.env.warnOfMisspelt(k.Model, logger)
	if c.RetryMax < c.RetryMin {
		return usageError{fmt.Errorf("%s must be at least --retry-min, %v, got %v: raise it", a.flag("retry-max"), c.RetryMin, c.RetryMax)}
	}
	poolConfig, err := c.poolConfig(a, logger, c.Workers)
	if err != nil {
		return err
	}
	if c.unset(a) {
		logger.Warn(noDatabase+": the defaults of libpq are taken", "host", poolConfig.ConnConfig.Host, "database", poolConfig.ConnConfig.Database)
	}
	listen, err := c.listenConfig(a, logger, &c.databaseFlags, listenSuffix)
	if err != nil {
		return err
	}
	servers, err := c.servers(a)
	if err != nil {
		return err
	}
	options, err := c.options(a)
	if err != nil {
		return err
	}
	d := &daemon{cmd: c, logger: logger}
	// Neither of these connects before it returns, or fails because it could
	// not.
	if d.pool, err = pgxpool.NewWithConfig(ctx, poolConfig); err != nil {
		return fmt.Errorf("make the connection pool: %w", err)
	}
	defer closePool(d.pool)
	options = append(options, dispatcher.NATSOptions()...)
	if d.nc, err = nats.Connect(servers, append(options, natsLog(logger)...)...); err != nil {
		return usageError{fmt.Errorf("NATS settings: %w", err)}
	}
	defer d.nc.Close()
	return d.run(ctx, a, dispatcher.Config{
		Pool: d.pool, Listen: listen, NATS: d.nc,
		JetStreamDomain: c.JetStreamDomain, JetStreamAPIPrefix: c.JetStreamAPIPrefix,
		Schema: c.Schema, Prefix: c.Prefix, Stream: c.Stream, Wake: c.Wake,
		Batch: c.Batch, BatchBytes: c.BatchBytes, Workers: c.Workers,
		SweepInterval: c.SweepInterval, PollInterval: c.PollInterval,
		PublishTimeout: c.PublishTimeout, DrainTimeout: c.DrainTimeout,
		MaxAttempts: c.MaxAttempts, RetryMin: c.RetryMin, RetryMax: c.RetryMax,
		Logger: logger,
	})
}

// poolGrace is how long the end waits for the connections to take leave of the server.
const poolGrace = time.Second

// closePool closes the pool. Where the server does not answer, pgx waits up to 15 s for a
// connection whose statement was given up, while whoever stops the daemon waits to kill
// it; the end of the process closes the connections all the same.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(poolGrace):
	}
}

// fieldFlags are the settings whose limits only the dispatcher knows.
var fieldFlags = map[string]string{"Prefix": "prefix", "Schema": "schema", "Stream": "stream"}

// nameFlags puts the name of the flag before each error of dispatcher.New that
// begins with the name of a field.
func nameFlags(a *app, err error) error {
	lines := strings.Split(strings.TrimPrefix(err.Error(), "dispatcher settings: "), "\n")
	for i, line := range lines {
		field, rest, _ := strings.Cut(line, " ")
		if flag := fieldFlags[field]; flag != "" {
			lines[i] = a.flag(flag) + " " + rest
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

func (d *daemon) run(ctx context.Context, a *app, cfg dispatcher.Config) error {
	reg := newRegistry()
	cfg.Observer = newMetrics(reg, cfg.Batch)
	var err error
	if d.dispatcher, err = dispatcher.New(cfg); err != nil {
		return usageError{nameFlags(a, err)}
	}
	reg.MustRegister(newHealthCollector(d.dispatcher), newBacklogCollector(d.pool, cfg.Schema))

	g, ctx := errgroup.WithContext(ctx)
	// Health is served until the claims in hand are finished.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	if d.cmd.on() {
		l, err := d.cmd.listen(ctx, a)
		if err != nil {
			return err
		}
		h := newHandler(a, d.dispatcher, reg, func() bool { return ctx.Err() != nil })
		d.logger.Info("serving health and metrics", "addr", l.Addr().String())
		g.Go(func() error { return h.serve(serving, l, d.logger) })
	}
	if d.cmd.CreateStream {
		c := &streamCreator{nc: d.nc, cfg: cfg, logger: d.logger}
		// Before dispatching if possible, so that its first check does not
		// complain about the stream that is about to come.
		if !c.try(ctx) {
			g.Go(func() error { c.run(ctx); return nil })
		}
	}
	g.Go(func() error { return d.checkSchema(ctx, cfg.Schema) })
	g.Go(func() error {
		defer stopServing()
		err := d.dispatcher.Run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("the dispatcher ended without being asked to")
		}
		return err
	})
	return g.Wait()
}

// schemaRetry is the wait between two attempts to read the schema's version.
const schemaRetry = 5 * time.Second

// checkSchema returns an error once it knows that the schema is older than the
// program. The dispatcher itself reports a schema that is not there, and a
// database that does not answer. A role that may not read the records is not
// checked.
func (d *daemon) checkSchema(ctx context.Context, schema string) error {
	for {
		var all []outbox.Migration
		err := d.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
			all, err = outbox.MigrationStatus(ctx, conn.Conn(), outbox.MigrateOptions{Schema: schema})
			return err
		})
		if err == nil {
			return outdated(schema, all)
		}
		if pgCode(err) == insufficientPrivilege {
			d.logger.Info("the role may not read outbox_migration: the schema's version is not checked")
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(schemaRetry):
		}
	}
}
