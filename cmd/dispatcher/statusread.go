package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// statusTimeout bounds one statement; what takes longer is estimated.
	statusTimeout = 3 * time.Second
	// countLimit is how far tasks are counted one by one.
	countLimit = 1_000_000
	// roundTripTimeout is how long a test notification may take.
	roundTripTimeout = 2 * time.Second
)

func (c *statusCmd) read(ctx context.Context, a *app, logger *slog.Logger) (*status, error) {
	dbConfig, err := c.connConfig(a, logger, statusSuffix)
	if err != nil {
		return nil, err
	}
	listenConfig, err := c.listenConfig(a, logger, &c.databaseFlags, statusSuffix)
	if err != nil {
		return nil, err
	}
	conn, err := c.connect(ctx, a, dbConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	s := &status{Schema: c.Schema}
	if s.Version, err = schemaVersion(ctx, conn, c.Schema); err != nil {
		return nil, err
	}
	r := statusReader{conn: conn, schema: c.Schema, table: pgx.Identifier{c.Schema, "outbox"}.Sanitize(), listener: listenConfig.User}
	for _, part := range []struct {
		what string
		read func(context.Context, *status) error
	}{
		{"the source", r.source},
		{"the tasks to send", r.unsent},
		{"the dead letters", r.dead},
		{"the sent tasks", r.sent},
		{"the sessions", r.sessions},
		{"the insert trigger", r.trigger},
		{"the mask", r.mask},
		{"the publication", r.wal},
	} {
		err := part.read(ctx, s)
		if pgCode(err) == undefinedTable {
			return nil, fmt.Errorf("no outbox in schema %q: run %s", c.Schema, migrateUp(c.Schema))
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", part.what, err)
		}
	}
	took, err := roundTrip(ctx, conn, listenConfig)
	if err != nil {
		s.Wake.Problem = oneLine(err)
	} else {
		ms := float64(took.Microseconds()) / 1000
		s.Wake.RoundTripMS = &ms
	}
	return s, nil
}

// statusReader reads the parts of a status.
type statusReader struct {
	conn   *pgx.Conn
	schema string
	table  string // quoted
	// listener is the role on whose connections wakes arrive.
	listener string
}

func (r *statusReader) source(ctx context.Context, s *status) error {
	return r.conn.QueryRow(ctx, "select name from "+pgx.Identifier{r.schema, "outbox_source"}.Sanitize()).Scan(&s.Source)
}

// The first two walk the index of unsent tasks, from its start and from now.
const (
	dueQuery = `
select count(*), extract(epoch from now() - min(send_after))::float8
  from (select send_after from %s
         where sent_at is null and dead_at is null and send_after <= now()
         order by send_after limit $1) due`
	laterQuery = `
select count(*) filter (where attempts = 0),
       count(*) filter (where attempts > 0),
       extract(epoch from min(send_after) - now())::float8
  from (select send_after, attempts from %s
         where sent_at is null and dead_at is null and send_after > now()
         order by send_after limit $1) later`
	deadQuery = `
select count(*) from (select from %s where dead_at is not null limit $1) dead`
)

func (r *statusReader) unsent(ctx context.Context, s *status) error {
	t := &s.Tasks
	err := r.bounded(ctx, &t.Due, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, fmt.Sprintf(dueQuery, r.table), countLimit).Scan(&t.Due.Count, &s.OldestDueSeconds)
	})
	if err != nil {
		return err
	}
	err = r.bounded(ctx, &t.Scheduled, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, fmt.Sprintf(laterQuery, r.table), countLimit).
			Scan(&t.Scheduled.Count, &t.Retrying.Count, &s.NextDueSeconds)
	})
	t.Retrying.How = t.Scheduled.How
	if t.Scheduled.Count+t.Retrying.Count >= countLimit {
		t.Scheduled.How, t.Retrying.How = atLeast, atLeast
	}
	return err
}

func (r *statusReader) dead(ctx context.Context, s *status) error {
	return r.bounded(ctx, &s.Tasks.Dead, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, fmt.Sprintf(deadQuery, r.table), countLimit).Scan(&s.Tasks.Dead.Count)
	})
}

// bounded runs a counting look and says how far its count can be trusted: not
// at all, beyond "at least 0", when it ran out of time.
func (r *statusReader) bounded(ctx context.Context, c *count, look func(pgx.Tx) error) error {
	err := boundedRead(ctx, r.conn, statusTimeout, look)
	switch {
	case pgCode(err) == queryCanceled:
		*c = count{How: atLeast}
		return nil
	case c.Count >= countLimit:
		c.How = atLeast
	default:
		c.How = exact
	}
	return err
}

// sent counts the sent tasks of a table of up to countLimit rows. Nothing
// indexes them, so of a larger one only the planner's estimate is cheap: by the
// statistics of the last vacuum or analyze, and the size of the table now.
func (r *statusReader) sent(ctx context.Context, s *status) error {
	const isSent = " where sent_at is not null"
	rows, err := r.estimate(ctx, "")
	if err != nil {
		return err
	}
	if rows <= countLimit {
		s.Tasks.Sent.How = exact
		err := pgx.BeginTxFunc(ctx, r.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("set local row_security = off; set local statement_timeout = %d", statusTimeout.Milliseconds())); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "select count(*) from "+r.table+isSent).Scan(&s.Tasks.Sent.Count)
		})
		if pgCode(err) != queryCanceled {
			return err
		}
	}
	s.Tasks.Sent.How = estimate
	s.Tasks.Sent.Count, err = r.estimate(ctx, isSent)
	return err
}

// estimate is how many rows the planner expects.
func (r *statusReader) estimate(ctx context.Context, where string) (int64, error) {
	var plan []byte
	if err := r.conn.QueryRow(ctx, "explain (format json) select from "+r.table+where).Scan(&plan); err != nil {
		return 0, err
	}
	var explained []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal(plan, &explained); err != nil {
		return 0, fmt.Errorf("read the planner's estimate: %w", err)
	}
	if len(explained) != 1 {
		return 0, errors.New("the planner's estimate is not one plan")
	}
	return int64(explained[0].Plan.Rows), nil
}

// sessionsQuery counts by application name. It takes that of this session
// without its suffix, because the server may have changed characters of it.
const sessionsQuery = `
with ours as (select left(current_setting('application_name'), -length($1::text)) as name)
select count(*) filter (where application_name = ours.name || $2),
       count(*) filter (where backend_type = 'walsender' and application_name like 'outbox\_wake\_%'),
       count(*) filter (where application_name = ours.name),
       pg_notification_queue_usage()
  from ours left join pg_stat_activity on datname = current_database()`

func (r *statusReader) sessions(ctx context.Context, s *status) error {
	return r.conn.QueryRow(ctx, sessionsQuery, statusSuffix, listenSuffix).
		Scan(&s.Dispatchers.Listening, &s.Dispatchers.Following, &s.Dispatchers.Connections, &s.Wake.QueueUsage)
}

// notifyQuery must not hang: a commit that notifies waits for all others that do.
const notifyQuery = `select set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1000', true), pg_notify($1, '')`

// roundTrip listens where a dispatcher would, on a channel of its own, and
// sends from where a producer would.
func roundTrip(ctx context.Context, from *pgx.Conn, listen *pgx.ConnConfig) (time.Duration, error) {
	to, err := pgx.ConnectConfig(ctx, listen)
	if err != nil {
		return 0, fmt.Errorf("connect to listen: %w", err)
	}
	defer func() { _ = to.Close(context.WithoutCancel(ctx)) }()
	channel := "outbox_status_" + strings.ToLower(rand.Text())
	if _, err := to.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	begun := time.Now()
	if _, err := from.Exec(ctx, notifyQuery, channel); err != nil {
		if pgCode(err) == lockNotAvailable {
			return 0, errors.New("another session, perhaps of another database, holds the lock that all notifications of the server take: pg_locks shows it (locktype object, database 0), it may be a commit that waits for a synchronous standby")
		}
		return 0, fmt.Errorf("notify: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, roundTripTimeout)
	defer cancel()
	if _, err := to.WaitForNotification(ctx); err != nil {
		if pgconn.Timeout(err) {
			return 0, fmt.Errorf("a test notification did not arrive within %v: if a transaction pooler is between, give a direct address with --listen-url", roundTripTimeout)
		}
		return 0, fmt.Errorf("wait for a test notification: %w", err)
	}
	return time.Since(begun), nil
}
