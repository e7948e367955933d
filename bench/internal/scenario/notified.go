package scenario

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// notified counts the transactions that notify the dispatcher of a lane, by
// listening to the same channel. That is exact: PostgreSQL delivers each
// notification to each listener, drops none, and folds those of one transaction
// that are alike into one. The trigger's payload is empty; those of dispatchers to
// themselves and to each other are not. One more listener costs a notifying
// transaction a signal, sent after it has released its locks; where few notify,
// that is nothing, and where all do, it is little beside what they wait for.
type notified struct {
	lane    *lane
	channel string
	end     string // the payload that ends the count
	conn    *pgx.Conn
	stop    context.CancelFunc
	seen    atomic.Int64
	done    chan struct{} // closed once err is set, or the count has ended
	err     error
}

// countNotified begins to count. The caller must close it.
func countNotified(ctx context.Context, l *lane) (*notified, error) {
	sum := sha256.Sum256([]byte(l.schema)) // as trigger.sql does
	n := &notified{lane: l, channel: "outbox_" + hex.EncodeToString(sum[:16]), end: "bench " + rand.Text(), done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, l.rig.dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	n.conn = conn
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{n.channel}.Sanitize()); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("listen: %w", err)
	}
	listening, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	go n.listen(listening)
	return n, nil
}

func (n *notified) listen(ctx context.Context) {
	defer close(n.done)
	for {
		got, err := n.conn.WaitForNotification(ctx)
		switch {
		case err != nil:
			n.err = fmt.Errorf("count notifications: %w", err)
			return
		case got.Payload == "":
			n.seen.Add(1)
		case got.Payload == n.end:
			return
		}
	}
}

// total ends the count, with the notifications of all transactions that have
// committed: they arrive in the order of the commits, and one of our own is last.
func (n *notified) total(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	if _, err := n.lane.rig.pool.Exec(ctx, "select pg_notify($1, $2)", n.channel, n.end); err != nil {
		return 0, fmt.Errorf("notify: %w", err)
	}
	select {
	case <-n.done:
		return int(n.seen.Load()), n.err
	case <-ctx.Done():
		return 0, fmt.Errorf("count notifications: the last one has not arrived: %w", ctx.Err())
	}
}

func (n *notified) close(ctx context.Context) error {
	n.stop()
	<-n.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	return n.conn.Close(ctx)
}
