package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The claiming transaction. All its settings are local to it, because a
// transaction pooler may hand the session to somebody else afterwards.
const (
	beginSQL = `begin isolation level read committed read write`

	// limitsSQL bounds what a frozen dispatcher or a vanished host can hold
	// ($1: publish timeout, $2: twice that, $3: three times, in ms), and
	// keeps the plan on the two indexes whatever the statistics say: a queue
	// table is empty when it is analysed and full when it is claimed from.
	// synchronous_commit is off because losing a mark in a database crash
	// only means a resend, which the stream drops. With row security in the
	// way, row_security = off is an error instead of an empty table.
	limitsSQL = `
select set_config('statement_timeout', $1::text, true),
       set_config('lock_timeout', '1000', true),
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       case when current_setting('server_version_num')::int >= 170000
            then set_config('transaction_timeout', $3::text, true) end,
       set_config('synchronous_commit', 'off', true),
       set_config('row_security', 'off', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true)`

	// The claim marks due tasks as sent, oldest first, before they are: most
	// succeed, so most cost one write. $1-$3: start after this place in the
	// due index, or a little before now if that is later and $1 is set; $4:
	// number of tasks; $5: bytes of bodies; $6: largest body to fetch.
	//
	// The materialised CTE matters: "id in (select ... limit n)" may be run
	// anew for each row and claim far more than n. The size is exact for
	// bytes; jsonb below 2 kB is taken as the size of its binary form.
	//
	// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
	dueSQL = `
with due as materialized (
  select id, send_after,
         coalesce(octet_length(body),
                  case when pg_column_size(payload) <= 2000 then pg_column_size(payload)
                       else octet_length(payload::text) end) as size
    from {outbox}
   where sent_at is null
     and dead_at is null
     and send_after <= now()
     and (send_after, id) > (case when $1::boolean then greatest($2::timestamptz, now() - interval '2 seconds')
                                  else $2::timestamptz end, $3::bigint)
   order by send_after, id
   limit $4
     for update skip locked
)`

	// allSQL takes all of them. If they turn out to be too large together, no
	// body is fetched, and the claim is made again with cutSQL.
	allSQL = `, taken as materialized (
  select id, size from due
)`

	// cutSQL takes as many as fit, and at least one. The running sum is a
	// fifth of the cost of claiming small tasks.
	cutSQL = `, taken as materialized (
  select id, size
    from (select id, size,
                 sum(case when size <= $6 then size else 0 end)
                   over (order by send_after, id rows unbounded preceding)
                 - case when size <= $6 then size else 0 end as before
            from due) as running
   where before < $5
)`

	markSQL = `
update {outbox} as o
   set sent_at = now(),
       attempts = least(o.attempts, 2147483646) + 1
  from taken
 where o.id = taken.id
returning o.id, o.kind, o.headers, o.attempts, o.created_at, o.send_after, taken.size,
          case when taken.size <= $6 and (select sum(size) from taken where size <= $6) <= $5::bigint + $6::bigint
               then o.payload end,
          case when taken.size <= $6 and (select sum(size) from taken where size <= $6) <= $5::bigint + $6::bigint
               then o.body end,
          extract(epoch from now() - greatest(o.created_at, o.send_after))::float8`
)

// place is a position in the due index. The zero place is before everything.
type place struct {
	after time.Time
	id    int64
}

func (p place) timestamp() pgtype.Timestamptz {
	if p.after.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: p.after, Valid: true}
}

func (p place) isAfter(q place) bool {
	return cmp.Or(p.after.Compare(q.after), cmp.Compare(p.id, q.id)) > 0
}

// claim is a set of tasks that this dispatcher alone may publish, for as long
// as its transaction stays open. A crash gives the tasks back at once.
type claim struct {
	conn  *pgxpool.Conn
	table *table
	tasks []Task
	// end is the furthest place claimed: the next claim of a pass starts there.
	end place
	// more is set if the claim was cut by its limits, not by want of tasks.
	more bool
	// cut is set if it was cut by bytes: the tasks beyond are locked by it
	// as well, though not taken, and lie behind the pass when it ends.
	cut bool
	// bytes is the size of the bodies that were, or would be, fetched.
	bytes int64
	// deadline ends publishing. By then plus as much again the server
	// has ended the transaction of a dispatcher that froze.
	deadline time.Time
}

// errDoubt is wrapped when counts do not add up: the claim is given back
// rather than committed.
var errDoubt = errors.New("the claim's counts do not add up")

// table claims from and settles in the outbox of one schema.
type table struct {
	pool           *pgxpool.Pool
	publishTimeout time.Duration
	limits         [3]string

	claimStmt, cutStmt, undoStmt, asideStmt, peekStmt, sourceStmt, headStmt string
}

func newTable(pool *pgxpool.Pool, schema string, publishTimeout time.Duration) *table {
	// The statements are constants; only the tables' names vary.
	named := strings.NewReplacer(
		"{outbox}", pgx.Identifier{schema, "outbox"}.Sanitize(),
		"{outbox_source}", pgx.Identifier{schema, "outbox_source"}.Sanitize(),
	).Replace
	t := &table{
		pool: pool, publishTimeout: publishTimeout,
		claimStmt: named(dueSQL + allSQL + markSQL), cutStmt: named(dueSQL + cutSQL + markSQL), undoStmt: named(undoSQL), asideStmt: named(asideSQL),
		peekStmt: named(peekSQL), sourceStmt: named(sourceSQL), headStmt: named(headSQL),
	}
	for i := range t.limits {
		t.limits[i] = strconv.FormatInt(int64(i+1)*publishTimeout.Milliseconds(), 10)
	}
	return t
}

// ask is what a claim may take and from where.
type ask struct {
	from  place
	hot   bool // start a little before now unless from is later
	tasks int
	bytes int64
	// large says that the tasks' sizes are to be looked at before they are
	// taken.
	large bool
	// fetch is the size of the largest body worth fetching: the broker
	// would refuse a larger one.
	fetch int64
}

// claim opens a transaction and claims due tasks in it. It returns a claim
// without tasks, and without a transaction, if nothing is due. The tasks are
// in the order in which they became due.
func (t *table) claim(ctx context.Context, a ask) (*claim, error) {
	c, err := t.claimOnce(ctx, a)
	if err == nil && !a.large && c.bytes > a.bytes+a.fetch {
		// Larger than the last ones were: nothing was fetched.
		c.release()
		a.large = true
		c, err = t.claimOnce(ctx, a)
	}
	return c, err
}

func (t *table) claimOnce(ctx context.Context, a ask) (*claim, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*t.publishTimeout)
	defer cancel()
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to claim: %w", err)
	}
	begun := time.Now()
	c := &claim{conn: conn, table: t, end: a.from, deadline: begun.Add(t.publishTimeout)}
	if err := c.read(ctx, a, begun); err != nil {
		c.release()
		return nil, fmt.Errorf("claim: %w", err)
	}
	if len(c.tasks) == 0 {
		c.release()
	}
	return c, nil
}

func (c *claim) read(ctx context.Context, a ask, begun time.Time) (err error) {
	var batch pgx.Batch
	batch.Queue(beginSQL)
	batch.Queue(limitsSQL, c.table.limits[0], c.table.limits[1], c.table.limits[2])
	stmt := c.table.claimStmt
	if a.large {
		stmt = c.table.cutStmt
	}
	batch.Queue(stmt, a.hot, a.from.timestamp(), a.from.id, a.tasks, a.bytes, a.fetch)
	res := c.conn.SendBatch(ctx, &batch)
	defer func() {
		if closeErr := res.Close(); err == nil && closeErr != nil {
			err = closeErr
		}
	}()
	for range 2 {
		if _, err := res.Exec(); err != nil {
			return err
		}
	}
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		t, err := scanTask(rows)
		if err != nil {
			return err
		}
		t.claimed = begun
		if int64(t.size) <= a.fetch {
			c.bytes += int64(t.size)
		}
		c.tasks = append(c.tasks, t)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n := rows.CommandTag().RowsAffected(); n != int64(len(c.tasks)) {
		return fmt.Errorf("%w: %d rows marked, %d read", errDoubt, n, len(c.tasks))
	}
	c.cut = c.bytes >= a.bytes && len(c.tasks) < a.tasks
	c.more = c.cut || len(c.tasks) >= a.tasks
	// RETURNING has no order.
	slices.SortFunc(c.tasks, func(x, y Task) int {
		return cmp.Or(x.sendAfter.Compare(y.sendAfter), cmp.Compare(x.ID, y.ID))
	})
	if n := len(c.tasks); n > 0 {
		c.end = place{c.tasks[n-1].sendAfter, c.tasks[n-1].ID}
	}
	return nil
}

func scanTask(rows pgx.Rows) (t Task, err error) {
	var headers, payload, body []byte
	var age float64
	if err := rows.Scan(&t.ID, &t.Kind, &headers, &t.Attempt, &t.CreatedAt, &t.sendAfter, &t.size, &payload, &body, &age); err != nil {
		return t, err
	}
	t.Age = time.Duration(age * float64(time.Second))
	t.Body = body
	if body == nil {
		t.Body = payload
	}
	t.rawHeaders = headers
	return t, nil
}

// release gives the tasks back as they were. It does nothing after the claim
// was settled or released.
func (c *claim) release() {
	if c.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.table.publishTimeout)
	defer cancel()
	// If this fails the pool closes the connection, which rolls back as well.
	_, _ = c.conn.Exec(ctx, "rollback")
	c.conn.Release()
	c.conn = nil
}
