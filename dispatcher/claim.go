package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
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
	name, maskName string // qualified and quoted
	publishTimeout time.Duration
	limits         [3]string // once, twice, and three times the publish timeout in ms

	claimStmt, cutStmt, undoStmt, peekStmt, sourceStmt, headStmt, holdStmt string
	// usual is the size of the last claim, which the next is likely to have.
	usual atomic.Int64
	// held and muted are left out of claims.
	held  held[int64]
	muted held[string]
}

func newTable(pool *pgxpool.Pool, schema string, publishTimeout time.Duration) *table {
	// The statements are constants; only names vary.
	named := strings.NewReplacer(
		"{outbox}", pgx.Identifier{schema, "outbox"}.Sanitize(),
		"{outbox_source}", pgx.Identifier{schema, "outbox_source"}.Sanitize(),
		"{outbox_mask}", pgx.Identifier{schema, "outbox_mask"}.Sanitize(),
		"{publication}", channelName(schema),
	).Replace
	t := &table{
		pool: pool, publishTimeout: publishTimeout,
		name: pgx.Identifier{schema, "outbox"}.Sanitize(), maskName: pgx.Identifier{schema, "outbox_mask"}.Sanitize(),
		claimStmt: named(allSQL + markSQL), cutStmt: named(cutSQL + markSQL), undoStmt: named(undoSQL),
		peekStmt: named(peekSQL), sourceStmt: named(sourceSQL), headStmt: named(headSQL), holdStmt: named(holdSQL),
	}
	for i := range t.limits {
		t.limits[i] = strconv.FormatInt(int64(i+1)*publishTimeout.Milliseconds(), 10)
	}
	return t
}

// leftOut lists the kinds that a claim must leave out.
func (t *table) leftOut(a ask, now time.Time) []string {
	if a.muted {
		return []string{}
	}
	return t.muted.list(now)
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
	// muted lets it take kinds that are held back.
	muted bool
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

// errSwollen ends the reading of a claim whose bodies are larger than their
// sizes said: a number such as 1e131071 is stored in a few bytes.
var errSwollen = errors.New("bodies are larger than their stored form")

// errLate ends a claim that took all the time that there is to publish it.
var errLate = errors.New("claimed too late to publish")

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

// statements begin the claim's transaction and make the claim, in one round trip. The
// claim is the last one.
func (c *claim) statements(a ask, begun time.Time) *pgx.Batch {
	batch := &pgx.Batch{}
	batch.Queue(beginSQL)
	if !tuned(c.conn.Conn()) {
		batch.Queue(localSQL, c.table.limits[0])
	}
	stmt := c.table.claimStmt
	if a.large {
		stmt = c.table.cutStmt
	}
	batch.Queue(stmt, a.hot, a.from.timestamp(), a.from.id, a.tasks, c.table.held.list(begun), c.table.leftOut(a, begun),
		a.bytes, a.fetch, c.table.limits[1], c.table.limits[2])
	return batch
}

func (c *claim) read(ctx context.Context, a ask, begun time.Time) (err error) {
	batch := c.statements(a, begun)
	res := c.conn.SendBatch(ctx, batch)
	defer func() {
		if closeErr := res.Close(); err == nil && closeErr != nil {
			err = closeErr
		}
	}()
	for range batch.Len() - 1 {
		if _, err := res.Exec(); err != nil {
			return err
		}
	}
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	var r reader
	var read int64
	c.tasks = make([]Task, 0, c.table.usual.Load())
	for rows.Next() {
		t, err := r.task(rows)
		if err != nil {
			return err
		}
		if read += int64(len(t.Body)); read > 2*(a.bytes+a.fetch) && a.tasks > 1 {
			// Reading on only to throw away could take long: hang up.
			_ = c.conn.Conn().Close(ctx)
			return errSwollen
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
	if len(c.tasks) > 0 && time.Now().After(c.deadline) {
		return fmt.Errorf("%w: %d tasks in %v", errLate, len(c.tasks), time.Since(begun).Round(time.Millisecond))
	}
	c.table.usual.Store(int64(len(c.tasks)))
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
