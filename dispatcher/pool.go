package dispatcher

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TunePool prepares cfg, the configuration of a pool that only the dispatcher
// uses, for low latency; without it all works the same, a little later. Call it
// after setting your own AfterConnect, which runs first; both have 5 s together.
//
//   - It drops the ping with which the pool tries a connection that was idle
//     for a second: that is a round trip just when a wake ends the idleness. A
//     dead connection shows as an error of the statement, which the dispatcher
//     repeats anyway.
//   - It gives each session, once, the settings that plan and read a claim,
//     which the claim's transaction otherwise makes each time. Their statement
//     timeout is 10 s, their lock timeout 1 s; hooks of the pool must not reset
//     them. Behind a pooler, where the server's process is not the
//     one that answered the handshake, it leaves the session alone, because
//     somebody else may get it next.
func TunePool(cfg *pgxpool.Config) {
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	first := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		// The pool waits for it for ever, also with a connection that went silent.
		ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
		defer cancel()
		if first != nil {
			if err := first(ctx, conn); err != nil {
				return err
			}
		}
		var set bool
		timeout := strconv.FormatInt(lookTimeout.Milliseconds(), 10)
		if err := conn.QueryRow(ctx, sessionSQL, pgx.QueryExecModeExec, timeout, strconv.FormatUint(uint64(conn.PgConn().PID()), 10)).Scan(&set); err != nil {
			return fmt.Errorf("prepare a session for claims: %w", err)
		}
		conn.PgConn().CustomData()[tunedKey] = set
		return nil
	}
}

// sessionTimeout bounds what is done with a new connection.
const sessionTimeout = 5 * time.Second

const tunedKey = "github.com/outbox-dispatcher/outbox/dispatcher.TunePool"

// tuned reports whether the session is set as a claim needs it.
func tuned(conn *pgx.Conn) bool { return conn.PgConn().CustomData()[tunedKey] == true }
