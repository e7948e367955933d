package dispatcher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"
)

// Replication is the wake source that reads the write-ahead log: a publication of
// the inserts, decoded through a slot that lives as long as the connection. The
// writers pay nothing, not even a trigger. No position is stored, because a wake
// is only a hint: each run starts where the log ends.
//
// It needs PostgreSQL 14 or later with wal_level=logical, a role with REPLICATION,
// a free walsender and a free slot. While it runs it holds two connections.
type Replication struct {
	// Config is where to connect: directly, not through a pooler.
	Config *pgx.ConnConfig
	// Publication is the name of the publication of the inserts, which must exist.
	// It is also the prefix of the messages that are for wake sources.
	Publication string
	// Canary is the content of a message that is no wake but a test of the log by
	// this process; OnCanary is called for each that arrives. Those of others are
	// ignored. Both functions must be set.
	Canary   string
	OnCanary func()
	// OnWaiting is called, about every three seconds, while the slot cannot be made
	// because transactions that write are open; detail says for how long, and for
	// which process, if that is known. No wakes arrive meanwhile.
	OnWaiting func(detail string)
}

const (
	// firstLook is when to tell that the slot is not made yet; after that it is told
	// every pingAfter.
	firstLook = time.Second
	// hangUpTimeout is how long the server may take to end a session.
	hangUpTimeout = time.Second
)

// Run implements [WakeSource]. It calls wake and OnCanary from goroutines
// of its own, each function from one at a time.
func (r *Replication) Run(ctx context.Context, wake func()) error {
	if err := r.run(ctx, wake); ctx.Err() == nil {
		return err
	}
	return nil
}

func (r *Replication) run(ctx context.Context, wake func()) error {
	slot := slotName()
	stream, err := r.connectStream(ctx, slot)
	if err != nil {
		return err
	}
	conns := []*pgconn.PgConn{stream}
	defer func() { hangUp(conns...) }() //nolint:contextcheck // also when ctx has ended
	plain, err := r.connectPlain(ctx)
	if err != nil {
		return err
	}
	conns = append(conns, plain.PgConn())
	if err := r.check(ctx, plain); err != nil {
		return err
	}
	begin, err := r.createSlot(ctx, stream, plain, slot)
	if err != nil {
		return err
	}
	if err := r.startStreaming(ctx, stream, slot); err != nil {
		return err
	}
	gate, err := newGate(ctx, plain, r.Publication, wake)
	if err != nil {
		return err
	}
	reader := &walReader{conn: stream, source: r, gate: gate, end: begin}
	wake()
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return gate.run(ctx) })
	both.Go(func() error { return reader.run(ctx) })
	return both.Wait()
}

// slotName makes a name that is unique in the cluster, whatever else runs there,
// and that needs no quotes.
func slotName() string { return "outbox_wake_" + strings.ToLower(rand.Text()) }

// connectStream makes the connection that carries the log. A role's or database's
// limits are lifted, because making the slot may take hours. Its name is that of
// the slot, so that it cannot be that of a synchronous standby.
func (r *Replication) connectStream(ctx context.Context, slot string) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, &r.config(map[string]string{
		"replication": "database", "application_name": slot, "lock_timeout": "0", "statement_timeout": "0",
	}).Config)
	if err != nil {
		return nil, r.explain("connect for replication", err)
	}
	return conn, nil
}

// connectPlain makes the connection that answers what is visible. It may be idle
// for as long as nothing is inserted.
func (r *Replication) connectPlain(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, r.config(map[string]string{"idle_session_timeout": "0"}))
	if err != nil {
		return nil, r.explain("connect beside the replication", err)
	}
	return conn, nil
}

func (r *Replication) config(params map[string]string) *pgx.ConnConfig {
	cfg := r.Config.Copy()
	maps.Copy(cfg.RuntimeParams, params)
	return cfg
}

// createSlot makes the slot and returns where it begins. The server does not answer
// before all transactions have ended that write at the moment, in any database.
func (r *Replication) createSlot(ctx context.Context, stream *pgconn.PgConn, plain *pgx.Conn, slot string) (pglogrepl.LSN, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		slot pglogrepl.CreateReplicationSlotResult
		err  error
	}
	made := make(chan answer, 1)
	go func() {
		slot, err := pglogrepl.CreateReplicationSlot(ctx, stream, slot, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
			Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT", Mode: pglogrepl.LogicalReplication,
		})
		made <- answer{slot, err}
	}()
	begun, late := time.Now(), false
	look := time.NewTimer(firstLook)
	defer look.Stop()
	for {
		select {
		case a := <-made:
			if a.err != nil {
				return 0, r.explain("create a replication slot", a.err)
			}
			return pglogrepl.ParseLSN(a.slot.ConsistentPoint)
		case <-look.C:
		}
		w, err := waitsFor(ctx, plain, stream.PID(), slot)
		switch {
		case err != nil:
		case !w.alive:
			err = errors.New("the server process that was to create it has ended")
		case w.made && late:
			err = errors.New("it is made, but the server's answer does not arrive")
		}
		if err != nil {
			stop()
			<-made
			return 0, fmt.Errorf("wait for the replication slot: %w", err)
		}
		if late = w.made; !late {
			r.OnWaiting(w.describe(time.Since(begun)))
		}
		look.Reset(pingAfter)
	}
}

// slotWait is how far the server is with a slot.
type slotWait struct {
	alive bool // the process that makes it
	made  bool
	// blocker is a process whose transaction is waited for, 0 if it is a prepared
	// transaction, nil if none is known.
	blocker *int
	// open is for how many seconds that transaction is open, if that may be known.
	open *float64
}

// waitsFor asks about the slot that another session makes. That it is answered is
// also the sign of life of the server, which the other connection cannot give now.
func waitsFor(ctx context.Context, plain *pgx.Conn, pid uint32, slot string) (w slotWait, err error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err = plain.QueryRow(ctx, `select exists (select from pg_stat_activity where pid = $1),
		exists (select from pg_replication_slots where slot_name = $2 and confirmed_flush_lsn is not null),
		b.pid, extract(epoch from clock_timestamp() - a.xact_start)::float8
		from (select (pg_blocking_pids($1))[1]) b(pid) left join pg_stat_activity a on a.pid = b.pid`,
		int(pid), slot).Scan(&w.alive, &w.made, &w.blocker, &w.open)
	if err != nil {
		return w, fmt.Errorf("no sign of life from the server: %w", err)
	}
	return w, nil
}

// describe says what is waited for, and for how long already.
func (w slotWait) describe(since time.Duration) string {
	text := fmt.Sprintf("the replication slot waits for %v until all transactions have ended that were writing", since.Round(time.Second))
	switch {
	case w.blocker == nil:
		return text
	case *w.blocker == 0:
		return text + ", now for a prepared transaction"
	case w.open == nil:
		return fmt.Sprintf("%s, now for that of process %d", text, *w.blocker)
	default:
		open := time.Duration(*w.open * float64(time.Second))
		return fmt.Sprintf("%s, now for that of process %d, open for %v", text, *w.blocker, open.Round(time.Second))
	}
}

// startStreaming returns once the server has begun to stream.
func (r *Replication) startStreaming(ctx context.Context, stream *pgconn.PgConn, slot string) error {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	// A list of identifiers, inside a string.
	names := strings.ReplaceAll(pgx.Identifier{r.Publication}.Sanitize(), "'", "''")
	err := pglogrepl.StartReplication(ctx, stream, slot, 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: []string{"proto_version '1'", "publication_names '" + names + "'", "messages 'true'"},
	})
	return r.explain("start replication", err)
}

// hangUp ends sessions and waits, for a moment, until the server has ended them,
// too: then their slot is gone.
func hangUp(conns ...*pgconn.PgConn) {
	var all sync.WaitGroup
	for _, conn := range conns {
		all.Go(func() {
			deadline := time.Now().Add(hangUpTimeout)
			if conn.IsClosed() {
				awaitClosed(conn, deadline)
				return
			}
			_ = conn.Conn().SetDeadline(deadline.Add(-hangUpTimeout / 2))
			conn.Frontend().Send(&pgproto3.Terminate{})
			_ = conn.Frontend().Flush()
			if _, err := io.Copy(io.Discard, conn.Conn()); err != nil {
				// It may be busy with a huge transaction, and listen to this only.
				ctx, cancel := context.WithDeadline(context.Background(), deadline)
				defer cancel()
				_ = conn.CancelRequest(ctx)
			}
			_ = conn.Close(context.Background())
		})
	}
	all.Wait()
}

// awaitClosed waits for pgconn, which after an error cancels the command and closes
// the connection in the background. A request to cancel that came before the
// command has done nothing, so there are more.
func awaitClosed(conn *pgconn.PgConn, deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case <-conn.CleanupDone():
			return
		case <-time.After(hangUpTimeout / 10):
			_ = conn.CancelRequest(ctx)
		}
	}
	_ = conn.Conn().Close()
}
