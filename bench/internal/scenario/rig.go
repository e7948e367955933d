package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

// rigFlags say what to measure on, and in which form the product runs.
type rigFlags struct {
	DSN     string `name:"dsn" placeholder:"URL" help:"PostgreSQL to use instead of a private one. Schemas are made in it, and dropped."`
	NATS    string `name:"nats" placeholder:"URL" help:"NATS with JetStream to use instead of a private one. Streams are made in it, and deleted."`
	Process bool   `help:"Build the daemon and run it as a process of its own, instead of the dispatcher within this one."`
}

const (
	// setupTimeout bounds each step before and after measuring.
	setupTimeout = 30 * time.Second
	// database is a database of its own in the private server too, because
	// notifications wake the listeners of one database only.
	database = "postgres"
)

// serverSettings are those of a server that is meant to be fast, not to be
// fragile: every commit waits for the disk.
var serverSettings = map[string]string{
	"shared_buffers":     "256MB",
	"max_wal_size":       "8GB",
	"min_wal_size":       "1GB",
	"checkpoint_timeout": "30min",
	"wal_level":          "replica",
	"max_connections":    "200",
}

// shortLived is for scenarios whose connections live for a second or so: each maps the
// shared memory page by page as it touches it, which costs as much as the work
// itself, on virtual machines above all, where there are no huge pages.
// They compare ways to wake, of which one follows the write-ahead log.
var shortLived = map[string]string{"shared_buffers": "32MB", "wal_level": "logical"}

// decodes returns an error if the server's log cannot be followed.
func (r *rig) decodes(ctx context.Context) error {
	var level string
	if err := r.pool.QueryRow(ctx, "show wal_level").Scan(&level); err != nil {
		return fmt.Errorf("read wal_level: %w", err)
	}
	if level != "logical" {
		return fmt.Errorf("wal_level of the server is %s, and following its log needs logical: set it, or use a private server (without --dsn)", level)
	}
	return nil
}

// rig is the servers that a scenario runs on, with connections of the bench's
// own to them.
type rig struct {
	dsn, natsURL string
	// serverLog is the log of the private PostgreSQL, empty for a given one.
	serverLog string
	// postmaster is its process, 0 for a given one.
	postmaster int
	ownNATS    bool
	broker     *broker
	pool       *pgxpool.Pool
	nc         *nats.Conn
	js         jetstream.JetStream
	binary     string // the daemon, once it was built
	undo       []func() error
}

// start makes the rig ready and describes it in the report. Settings are added to
// those of the private PostgreSQL. The caller must close the rig.
func (b *bench) start(ctx context.Context, settings map[string]string) (_ *rig, err error) {
	b.report.Machine = readMachine(ctx)
	r := &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	if err := r.startPostgres(ctx, b, settings); err != nil {
		return nil, err
	}
	if err := r.startNATS(b); err != nil {
		return nil, err
	}
	if err := r.describe(ctx, b.report); err != nil {
		return nil, err
	}
	others := r.others()
	r.later(func() error { b.report.noteOthers(others()); return nil })
	return r, nil
}

// muchOfOthers is from which share of the machine on other processes are worth
// a word.
const muchOfOthers = 0.03

func (r *report) noteOthers(share float64, ok bool) {
	if ok && share >= muchOfOthers {
		r.note("other processes took %.0f %% of the machine's CPU time meanwhile: times are longer and speeds lower than they would be alone", 100*share)
	}
}

func (r *rig) startPostgres(ctx context.Context, b *bench, extra map[string]string) error {
	r.dsn = b.DSN
	if r.dsn == "" {
		b.say("starting PostgreSQL")
		settings := maps.Clone(serverSettings)
		maps.Copy(settings, extra)
		s, err := pgserver.Start(ctx, pgserver.Options{Fsync: true, Settings: settings})
		if err != nil {
			return err
		}
		r.later(s.Close)
		r.dsn, r.serverLog, r.postmaster = s.DSN(database), s.LogFile(), s.PID()
	}
	// Not that of the dispatcher: its timeout and plans are for claims.
	cfg, err := pgxpool.ParseConfig(r.dsn)
	if err != nil {
		return fmt.Errorf("read --dsn: %w", err)
	}
	cfg.MaxConns = 16
	if r.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	r.later(func() error { r.pool.Close(); return nil })
	return nil
}

// poolConfig is that of the daemon, also for what it is compared with.
func (r *rig) poolConfig(conns int32) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(r.dsn)
	if err != nil {
		return nil, fmt.Errorf("read --dsn: %w", err)
	}
	cfg.MaxConns = conns
	dispatcher.TunePool(cfg)
	return cfg, nil
}

func (r *rig) startNATS(b *bench) (err error) {
	r.natsURL = b.NATS
	if r.natsURL == "" {
		b.say("starting NATS")
		if r.broker, err = startBroker(); err != nil {
			return err
		}
		r.later(r.broker.close)
		r.natsURL, r.ownNATS = r.broker.server.URL(), true
	}
	if r.nc, err = r.connect("bench"); err != nil {
		return err
	}
	r.later(func() error { r.nc.Close(); return nil })
	if r.js, err = jetstream.New(r.nc); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return nil
}

// connect returns a connection of its own to NATS. The caller closes it.
func (r *rig) connect(name string) (*nats.Conn, error) {
	nc, err := nats.Connect(r.natsURL, append(dispatcher.NATSOptions(), nats.Name(name), nats.RetryOnFailedConnect(false))...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, nil
}

func (r *rig) describe(ctx context.Context, rep *report) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	rep.Machine.NATS = r.nc.ConnectedServerVersion()
	var fsync string
	err := r.pool.QueryRow(ctx, "select current_setting('server_version'), current_setting('fsync')").Scan(&rep.Machine.PostgreSQL, &fsync)
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	if fsync != "on" {
		rep.note("fsync is %s on this PostgreSQL: commits do not wait for the disk, and no figure here is one of production", fsync)
	}
	return nil
}

// later remembers what close has to do, last first.
func (r *rig) later(f func() error) { r.undo = append(r.undo, f) }

// closer is what has to be closed even after ctx ended.
type closer interface {
	close(ctx context.Context) error
}

// close ends what start began.
func (r *rig) close(context.Context) error {
	var errs []error
	for len(r.undo) > 0 {
		last := len(r.undo) - 1
		errs = append(errs, r.undo[last]())
		r.undo = r.undo[:last]
	}
	return errors.Join(errs...)
}

// counted returns n for the default run and long for one with --long.
func (b *bench) counted(n, long int) int {
	if b.long {
		return long
	}
	return n
}

// deferClose closes in a deferred call and keeps the error.
func deferClose(ctx context.Context, err *error, what closer) {
	*err = errors.Join(*err, what.close(ctx))
}
