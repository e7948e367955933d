package dispatcher

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

// Defaults of the fields of [Config]; a field left at zero takes the value here.
const (
	DefaultSchema         = "public"
	DefaultPrefix         = "outbox"
	DefaultBatch          = 1000
	DefaultBatchBytes     = 4 << 20
	DefaultWorkers        = 4
	DefaultSweepInterval  = 10 * time.Second
	DefaultPollInterval   = 500 * time.Millisecond
	DefaultPublishTimeout = 5 * time.Second
	DefaultDrainTimeout   = 15 * time.Second
	DefaultMaxAttempts    = 30
	DefaultRetryMin       = time.Second
	DefaultRetryMax       = 10 * time.Minute
)

// Limits that validate enforces.
const (
	// MaxPublishTimeout bounds how long a claim, and with it row locks and
	// the database's vacuum horizon, can be held (design: at most 5 s).
	MaxPublishTimeout = 5 * time.Second
	// maxPrefix leaves room for the longest kind (190 bytes) within a
	// subject of 255 bytes. A subject of about 4,060 bytes makes the NATS
	// server close the connection for good; we stay far away from it.
	maxPrefix = 64
	maxBatch  = 10_000
)

// WakeMode names how the dispatcher learns of new tasks.
type WakeMode string

// The wake modes.
const (
	// WakeNotify listens for the NOTIFY of the insert trigger.
	WakeNotify WakeMode = "notify"
	// WakeWAL follows the write-ahead log through a temporary replication slot.
	// Producers pay nothing for it, not even a trigger. It needs the publication
	// of outbox.PublicationSQL, wal_level = logical and a role with REPLICATION.
	WakeWAL WakeMode = "wal"
	// WakeAuto takes the best of the others that works, and changes over at run
	// time: WakeNotify, else WakeWAL, else WakePoll. It wants what both need.
	WakeAuto WakeMode = "auto"
	// WakePoll looks every PollInterval, and under load almost without a pause.
	// It needs neither a trigger nor a session connection.
	WakePoll WakeMode = "poll"
)

// Config holds every setting of a [Dispatcher]. Pool and NATS are required;
// any other field may stay zero and then takes the default that its comment
// names. A value outside the stated range is refused by [New], never replaced.
type Config struct {
	// Pool is where tasks are claimed and settled. It needs at least
	// Workers+2 connections, and may lead through a transaction pooler.
	// [TunePool] makes its latency lower.
	// The caller closes it, after Run has returned.
	Pool *pgxpool.Pool
	// Listen is the address of the connection on which wakes arrive, LISTEN or
	// replication. It must be a direct connection, not one through a transaction
	// pooler. Nil: that of Pool.
	Listen *pgx.ConnConfig
	// NATS is the connection to publish on, made with [NATSOptions]. The
	// caller closes it, after Run has returned.
	NATS *nats.Conn
	// JetStreamDomain and JetStreamAPIPrefix select a JetStream behind a
	// leaf node or an account import. Set at most one. Default: neither.
	JetStreamDomain    string
	JetStreamAPIPrefix string

	// Schema is the database schema of the outbox. Default "public".
	Schema string
	// Prefix is put before each task's kind, with a dot, to make the
	// subject: NATS tokens of letters, digits, "_" and "-", at most 64
	// bytes. Default "outbox".
	Prefix string
	// Stream is the name of the only stream whose acknowledgement counts.
	// Default "": any stream that captures a subject below Prefix.
	Stream string

	// Wake selects the wake source. Default WakeNotify.
	Wake WakeMode
	// Batch is how many tasks one claim takes at most, 1 to 10,000. Default 1,000.
	Batch int
	// BatchBytes is how many bytes of message bodies one claim takes at
	// most, 1 kB to 1 GB; a single larger task is still claimed, alone.
	// Memory in use grows with BatchBytes times Workers. Default 4 MiB.
	BatchBytes int
	// Workers is how many claims may be in hand at once, 1 to 64. Default 4.
	Workers int
	// SweepInterval is the time between two looks at the whole table while
	// the wake source is healthy, 100 ms to 10 min. Default 10 s.
	SweepInterval time.Duration
	// PollInterval is the same while the wake source is not healthy, and
	// always with WakePoll, 1 ms to 1 min. Default 500 ms.
	PollInterval time.Duration
	// PublishTimeout bounds publishing one claim and so how long its rows
	// stay locked, 100 ms to 5 s. Default 5 s.
	PublishTimeout time.Duration
	// DrainTimeout bounds how long Run goes on with the claims in hand
	// after a stop was requested, 1 s to 10 min. Default 15 s.
	DrainTimeout time.Duration

	// MaxAttempts is after how many refusals by the broker a task becomes a
	// dead letter, 1 to 1,000,000. Outages are not attempts. Default 30.
	MaxAttempts int
	// RetryMin and RetryMax bound the backoff after a refusal, 1 ms to
	// 24 h. It doubles with each attempt. Default 1 s and 10 min.
	RetryMin, RetryMax time.Duration

	// Observer is told of each step. Default: nobody is.
	Observer Observer
	// Logger takes state changes and trouble; nothing is logged per task
	// above level debug, payloads never. Default slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Schema = cmp.Or(c.Schema, DefaultSchema)
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.Wake = cmp.Or(c.Wake, WakeNotify)
	c.Batch = cmp.Or(c.Batch, DefaultBatch)
	c.BatchBytes = cmp.Or(c.BatchBytes, DefaultBatchBytes)
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.SweepInterval = cmp.Or(c.SweepInterval, DefaultSweepInterval)
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	c.RetryMin = cmp.Or(c.RetryMin, DefaultRetryMin)
	c.RetryMax = cmp.Or(c.RetryMax, max(DefaultRetryMax, c.RetryMin))
	if c.Observer == nil {
		c.Observer = NopObserver{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Listen == nil && c.Pool != nil {
		c.Listen = c.Pool.Config().ConnConfig
	}
	return c
}

// validate reports every setting that is missing or out of range. It expects
// the defaults to be filled in.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Pool == nil {
		bad("Pool is required")
	} else if need := int32(c.Workers) + 2; c.Pool.Config().MaxConns < need { // #nosec G115 -- Workers is at most 64, checked below
		bad("Pool has %d connections at most, %d workers need %d: raise pool_max_conns or lower Workers",
			c.Pool.Config().MaxConns, c.Workers, need)
	}
	if c.NATS == nil {
		bad("NATS is required")
	}
	if c.JetStreamDomain != "" && c.JetStreamAPIPrefix != "" {
		bad("JetStreamDomain %q and JetStreamAPIPrefix %q exclude each other: set one", c.JetStreamDomain, c.JetStreamAPIPrefix)
	}
	if len(c.Schema) > 63 || strings.ContainsRune(c.Schema, 0) {
		bad("Schema %.80q must be a PostgreSQL name of at most 63 bytes", c.Schema)
	}
	if len(c.Prefix) > maxPrefix || !validTokens(c.Prefix) {
		bad("Prefix %.80q must be 1 to %d bytes of letters, digits, _ and -, with single dots between: choose a plain subject prefix such as %q",
			c.Prefix, maxPrefix, DefaultPrefix)
	}
	if strings.ContainsAny(c.Stream, " .*>/\\\t\r\n") {
		bad("Stream %.80q is not a stream name: no blank, dot, *, > or path separator", c.Stream)
	}
	if !slices.Contains([]WakeMode{WakeNotify, WakeWAL, WakeAuto, WakePoll}, c.Wake) {
		bad("Wake %q must be %q, %q, %q or %q", c.Wake, WakeNotify, WakeWAL, WakeAuto, WakePoll)
	}
	integer := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			bad("%s must be %d to %d, got %d", name, lo, hi, v)
		}
	}
	integer("Batch", c.Batch, 1, maxBatch)
	integer("BatchBytes", c.BatchBytes, 1<<10, 1<<30)
	integer("Workers", c.Workers, 1, 64)
	integer("MaxAttempts", c.MaxAttempts, 1, 1_000_000)
	duration := func(name string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			bad("%s must be %v to %v, got %v", name, lo, hi, v)
		}
	}
	duration("SweepInterval", c.SweepInterval, 100*time.Millisecond, 10*time.Minute)
	duration("PollInterval", c.PollInterval, time.Millisecond, time.Minute)
	duration("PublishTimeout", c.PublishTimeout, 100*time.Millisecond, MaxPublishTimeout)
	duration("DrainTimeout", c.DrainTimeout, time.Second, 10*time.Minute)
	duration("RetryMin", c.RetryMin, time.Millisecond, 24*time.Hour)
	duration("RetryMax", c.RetryMax, c.RetryMin, 24*time.Hour)
	return errors.Join(errs...)
}
