package dispatcher

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// gate holds back wakes until their tasks can be seen. The server sends a commit
// as soon as it is in the log, before other sessions see it: a moment before, or
// much longer if the commit waits for a synchronous standby.
type gate struct {
	conn *pgconn.PgConn
	wake func()

	added signal
	mu    sync.Mutex
	fresh []uint32 // committed, not asked about yet

	// Of the goroutine of run. What waits is limited by the number of sessions, and
	// fresh by what arrives during one question.
	waiting []uint32
	pause   time.Duration
	snap    snapshot
}

const (
	// gateRest is the least time between two questions, so that a thousand commits
	// per second do not cost a thousand and more.
	gateRest = time.Millisecond
	// While a commit is not visible, the question is asked again after gateMin, then
	// after pauses that grow to gateMax.
	gateMin = 100 * time.Microsecond
	gateMax = 100 * time.Millisecond

	gateStatement = "outbox_gate"
)

// newGate makes a gate in which those wait who have written into the published
// table and not ended yet. The slot decodes what is committed after it was made,
// but a transaction may have committed before and be invisible still.
func newGate(ctx context.Context, plain *pgx.Conn, publication string, wake func()) (*gate, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	rows, err := plain.Query(ctx, `select transactionid from pg_locks
		where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted and virtualtransaction in (
			select l.virtualtransaction from pg_locks l
			join pg_database d on d.oid = l.database and d.datname = current_database()
			join pg_publication_rel r on r.prrelid = l.relation
			join pg_publication p on p.oid = r.prpubid and p.pubname = $1
			where l.locktype = 'relation' and l.mode = 'RowExclusiveLock')`, publication)
	if err != nil {
		return nil, fmt.Errorf("look who writes tasks: %w", err)
	}
	writers, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("look who writes tasks: %w", err)
	}
	g := &gate{conn: plain.PgConn(), wake: wake, added: newSignal(), pause: pingAfter}
	if _, err := g.conn.Prepare(ctx, gateStatement, "select pg_current_snapshot()", nil); err != nil {
		return nil, fmt.Errorf("prepare to ask what is visible: %w", err)
	}
	for _, xid := range writers {
		g.add(xid)
	}
	return g, nil
}

// add has the gate wake once that transaction is visible. Safe for concurrent use.
func (g *gate) add(xid uint32) {
	g.mu.Lock()
	g.fresh = append(g.fresh, xid)
	g.mu.Unlock()
	g.added.notify()
}

// run wakes until ctx ends, and returns nil then.
func (g *gate) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(g.pause)
		select {
		case <-ctx.Done():
			return nil
		case <-g.added:
		case <-timer.C:
		}
		rest, err := g.turn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		sleep(ctx, rest)
	}
}

// turn asks once, wakes if something has become visible, and sets the pause until
// the next time. It returns how long to rest at least.
func (g *gate) turn(ctx context.Context) (rest time.Duration, err error) {
	known := len(g.waiting)
	g.mu.Lock()
	g.waiting = append(g.waiting, g.fresh...)
	g.fresh = g.fresh[:0]
	g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.pause = pingAfter
		return 0, ping(ctx, g.conn)
	}
	if err := g.ask(ctx); err != nil {
		return 0, fmt.Errorf("ask what is visible: %w", err)
	}
	late := g.waiting[:0]
	news := false // one of the fresh is not visible
	for i, xid := range g.waiting {
		if !g.snap.past(xid) {
			late = append(late, xid)
			news = news || i >= known
		}
	}
	if len(late) < len(g.waiting) {
		g.wake()
	}
	g.waiting = late
	switch {
	case len(late) == 0:
		g.pause = pingAfter
	case news:
		g.pause = gateMin
	default:
		g.pause = min(g.pause+g.pause/4, gateMax)
	}
	return min(g.pause, gateRest), nil
}

// ask takes a snapshot.
func (g *gate) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	binaryFormat := []int16{1}
	rows := g.conn.ExecPrepared(ctx, gateStatement, nil, nil, binaryFormat)
	var bad error
	for rows.NextRow() {
		bad = g.snap.decode(rows.Values()[0])
	}
	if _, err := rows.Close(); err != nil {
		return err
	}
	return bad
}

// snapshot is what pg_current_snapshot() returns: transactions before xmin and
// those before xmax that are not running are past. The others are not visible.
type snapshot struct {
	xmin, xmax uint64
	running    []uint64 // ascending
}

// decode reads the binary form, into the memory of the snapshot before.
func (s *snapshot) decode(raw []byte) error {
	const header, word = 4 + 8 + 8, 8
	if len(raw) < header {
		return errors.New("the snapshot is too short")
	}
	running := raw[header:]
	if n := binary.BigEndian.Uint32(raw); uint64(len(running)) != uint64(n)*word {
		return fmt.Errorf("the snapshot has %d bytes for %d transactions", len(running), n)
	}
	s.xmin, s.xmax = binary.BigEndian.Uint64(raw[4:]), binary.BigEndian.Uint64(raw[12:])
	s.running = s.running[:0]
	for ; len(running) > 0; running = running[word:] {
		s.running = append(s.running, binary.BigEndian.Uint64(running))
	}
	return nil
}

// past reports whether the transaction has ended for everybody who takes a
// snapshot from now on. The id is cut to 32 bits, as in the log; transactions are
// never more than 2^31 apart.
func (s *snapshot) past(xid uint32) bool {
	before := int32(uint32(s.xmax) - xid) // #nosec G115 -- cut on purpose
	if before <= 0 {
		return false
	}
	full := s.xmax - uint64(before) // #nosec G115 -- positive
	if full < s.xmin {
		return true
	}
	_, running := slices.BinarySearch(s.running, full)
	return !running
}
