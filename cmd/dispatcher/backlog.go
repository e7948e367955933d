package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// backlogAge is for how long a reading serves further scrapes: several
	// servers that scrape must not cost more than one.
	backlogAge = 5 * time.Second
	// backlogTimeout bounds one reading, in the database too.
	backlogTimeout = 2 * time.Second
	// backlogLimit is how many due tasks are counted at most.
	backlogLimit = 1_000_000
)

// backlogCollector reads from the database, at scrapes only, how many tasks
// are due. A database that fails leaves the two gauges out of the scrape and
// counts an error: an old number would look like a standstill.
type backlogCollector struct {
	pool            *pgxpool.Pool
	age             time.Duration // of a reading that still serves
	query           string
	pending, oldest *prometheus.Desc
	errors          prometheus.Counter

	mu   sync.Mutex
	read time.Time
	last *backlog
}

type backlog struct{ pending, oldestSeconds float64 }

func newBacklogCollector(pool *pgxpool.Pool, schema string) *backlogCollector {
	return &backlogCollector{
		pool:    pool,
		age:     backlogAge,
		query:   fmt.Sprintf(backlogQuery, pgx.Identifier{schema, "outbox"}.Sanitize()),
		pending: prometheus.NewDesc("outbox_pending", fmt.Sprintf("Tasks that are due and not sent, counted up to %d.", backlogLimit), nil, nil),
		oldest:  prometheus.NewDesc("outbox_oldest_pending_seconds", "For how long the oldest of them has been due; 0 when there is none.", nil, nil),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outbox_pending_errors_total", Help: "Scrapes that could not read the pending tasks from the database.",
		}),
	}
}

// Describe implements [prometheus.Collector].
func (c *backlogCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.pending
	ch <- c.oldest
	c.errors.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (c *backlogCollector) Collect(ch chan<- prometheus.Metric) {
	// The lock is held while reading, so that scrapes at the same time share
	// one reading.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.IsZero() || time.Since(c.read) >= c.age {
		b, err := c.fetch()
		c.last, c.read = b, time.Now()
		if err != nil {
			c.errors.Inc()
		}
	}
	c.errors.Collect(ch)
	if c.last == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, c.last.pending)
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, c.last.oldestSeconds)
}

// backlogQuery walks the due index from its start and stops at the limit.
const backlogQuery = `
select count(*), coalesce(extract(epoch from now() - min(send_after)), 0)::float8
  from (select send_after
          from %s
         where sent_at is null and dead_at is null and send_after <= now()
         order by send_after
         limit $1) due`

func (c *backlogCollector) fetch() (*backlog, error) {
	ctx, cancel := context.WithTimeout(context.Background(), backlogTimeout)
	defer cancel()
	var b backlog
	err := boundedRead(ctx, c.pool, backlogTimeout, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, c.query, backlogLimit).Scan(&b.pending, &b.oldestSeconds)
	})
	if err != nil {
		return nil, fmt.Errorf("read the pending tasks: %w", err)
	}
	return &b, nil
}

// beginner is a pool or a connection.
type beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// boundedSettings keep a look at the table from becoming a load: it ends in
// time, and never reads the table from end to end, which a planner with old
// statistics may prefer to the index of the few unsent rows. Under row level
// security a role sees nothing, without an error, unless it asks for one.
const boundedSettings = `
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local row_security = off;
set local statement_timeout = `

// boundedRead runs look in a read-only transaction under boundedSettings.
func boundedRead(ctx context.Context, db beginner, limit time.Duration, look func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("%s%d", boundedSettings, limit.Milliseconds())); err != nil {
			return err
		}
		return look(tx)
	})
}
