package dispatcher

import (
	"context"
	"fmt"
	"time"
)

const (
	// maskLease is how far ahead the lease is set; the trigger ignores more than 5 s.
	maskLease = 1500 * time.Millisecond
	// maskRenew is when it is set anew.
	maskRenew = 500 * time.Millisecond
)

const (
	// holdSQL sets the lease to $1 unless another's is longer. The value is
	// absolute, so a statement that lingers on a broken connection and is executed
	// late has no effect. 5,000 ms is the longest lease, as in trigger.sql. The
	// setting is for its own commit, which must not wait for a disk or a standby.
	holdSQL = `
select pg_catalog.set_config('synchronous_commit', 'off', true),
       pg_catalog.setval($2::pg_catalog.regclass,
                         greatest($1::bigint, case when last_value <= $1::bigint + 5000 then last_value end))
  from {outbox_mask}`

	clearSQL = `
select pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.setval($1::pg_catalog.regclass, 0)`

	// drawSQL must be a transaction of its own.
	drawSQL = `select pg_catalog.pg_current_xact_id()::text::bigint`

	handOverSQL = `
select pg_catalog.set_config('synchronous_commit', 'off', true),
       pg_catalog.set_config('lock_timeout', '500', true),
       pg_catalog.pg_notify($1, $2)`
)

// hold sets the lease until the given server time.
func (t *table) hold(ctx context.Context, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, maskLease)
	defer cancel()
	if _, err := t.pool.Exec(ctx, t.holdStmt, until.UnixMilli(), t.maskName); err != nil {
		return fmt.Errorf("mask the notifications: %w", err)
	}
	return nil
}

// clear sets the lease to 0.
func (t *table) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if _, err := t.pool.Exec(ctx, clearSQL, t.maskName); err != nil {
		return fmt.Errorf("unmask the notifications: %w", err)
	}
	return nil
}

// draw returns a new transaction id. Its transaction has ended.
func (t *table) draw(ctx context.Context) (x uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := t.pool.QueryRow(ctx, drawSQL).Scan(&x); err != nil {
		return 0, fmt.Errorf("draw a transaction id: %w", err)
	}
	return x, nil
}

// handOver asks the other dispatchers to cover what was skipped under our lease.
func (t *table) handOver(ctx context.Context, channel string) error {
	if _, err := t.pool.Exec(ctx, handOverSQL, channel, coverPayload); err != nil {
		return fmt.Errorf("hand over to the other dispatchers: %w", err)
	}
	return nil
}
