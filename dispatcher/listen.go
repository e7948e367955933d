package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// channelName is the NOTIFY channel of a schema's outbox: short, lower case
// and distinct for every schema name, however long or odd. trigger.sql
// computes the same.
func channelName(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "outbox_" + hex.EncodeToString(sum[:16])
}

// Listen is the wake source of [WakeNotify]: LISTEN on a connection of its own.
type Listen struct {
	// Config is where to connect: a session, not a transaction pooler.
	Config *pgx.ConnConfig
	// Channel is the channel that the insert trigger notifies.
	Channel string
	// Canary is a payload that is no wake but a test of the channel by this
	// process; OnCanary is called for each that arrives, from the goroutine of Run.
	// Payloads of others' tests are ignored. Both functions must be set.
	Canary   string
	OnCanary func()
	// OnCover is called when another dispatcher, which masked the notifications
	// and stops, asks the others to look for what was skipped.
	OnCover func()
}

const (
	listenConnectTimeout = 5 * time.Second
	// pingAfter is how long the connection may be silent before the server is
	// asked for a sign of life, pingTimeout how long it may take to answer.
	pingAfter   = 3 * time.Second
	pingTimeout = 2 * time.Second
	// canaryPrefix marks the payload of a test notification, ours or that of
	// another dispatcher. The trigger's own payload is empty.
	canaryPrefix = "canary "
	// coverPayload asks to look for what was skipped; see mask.
	coverPayload = "cover"
)

// Run implements [WakeSource]. The connection does nothing but listen and is
// never inside a transaction, so it cannot hold up the notification queue. While
// it is silent the server is asked for a sign of life, so a connection that leads
// nowhere any more is an error after five seconds.
func (l *Listen) Run(ctx context.Context, wake func()) error {
	conn, err := l.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	wake()
	for {
		n, err := await(ctx, conn)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("wait for a notification: %w", err)
		}
		switch {
		case n.Payload == l.Canary:
			l.OnCanary()
		case n.Payload == coverPayload:
			l.OnCover()
		case len(n.Payload) > len(canaryPrefix) && n.Payload[:len(canaryPrefix)] == canaryPrefix:
		default:
			wake()
		}
	}
}

// await waits for a notification.
func await(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		quiet, cancel := context.WithTimeout(ctx, pingAfter)
		n, err := conn.WaitForNotification(quiet)
		cancel()
		if err == nil || ctx.Err() != nil || !pgconn.Timeout(err) {
			return n, err
		}
		if err := ping(ctx, conn.PgConn()); err != nil {
			return nil, err
		}
	}
}

// ping asks the server for a sign of life. A Sync alone is answered without a
// statement or a transaction: the database does no work for it, nor counts it.
// Notifications that arrive meanwhile are kept for the next wait.
func ping(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	p := conn.StartPipeline(ctx)
	err := p.Sync()
	if closeErr := p.Close(); err == nil { // after the answer
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("no sign of life from the server, which has %v to give one: %w", pingTimeout, err)
	}
	return nil
}

func (l *Listen) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.Channel}.Sanitize()); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return conn, nil
}
