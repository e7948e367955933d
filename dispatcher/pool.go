package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TunePool prepares cfg, the configuration of a pool that only the dispatcher
// uses, for low latency. Call it after setting your own AfterConnect, which
// runs first. Without it a dispatcher does the same, a little later:
//
//   - It drops the ping with which the pool tries a connection that was idle
//     for a second: that is a round trip just when a wake ends the idleness. A
//     dead connection shows as an error of the statement, which the dispatcher
//     repeats anyway.
//   - It gives each session, once, the settings that plan and read a claim,
//     which the claim's transaction otherwise makes each time: a tenth of the
//     median latency under load. Behind a pooler, where the server's process
//     is not the one that answered the handshake, it leaves the session alone,
//     because somebody else may get it next.
func TunePool(cfg *pgxpool.Config) {
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	first := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if first != nil {
			if err := first(ctx, conn); err != nil {
				return err
			}
		}
		if _, err := conn.Exec(ctx, sessionSQL, pgx.QueryExecModeExec, int64(conn.PgConn().PID())); err != nil {
			return fmt.Errorf("prepare a session for claims: %w", err)
		}
		return nil
	}
}
