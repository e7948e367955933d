package dispatcher

import (
	"context"
	"fmt"
	"strings"
)

// undoSQL takes the mark back from tasks that were not stored. One whose
// attempt does not count keeps its attempts; one with a negative delay
// keeps its place in the queue. Attempts and delay are capped here, where
// an overflow would abort the batch and have its stored tasks resent for ever.
const undoSQL = `
update {outbox} as o
   set sent_at = null,
       attempts = case when u.counted then o.attempts else greatest(o.attempts - 1, 0) end,
       send_after = case when u.delay < 0 then o.send_after
                         else clock_timestamp() + least(u.delay, 86400) * interval '1 second' end,
       dead_at = case when u.dead then clock_timestamp() end,
       last_error = u.reason
  from rows from (
         pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::boolean[]), pg_catalog.unnest($3::boolean[]),
         pg_catalog.unnest($4::float8[]), pg_catalog.unnest($5::text[])
       ) as u(id, counted, dead, delay, reason)
 where o.id = u.id`

// maxReason bounds last_error, in bytes.
const maxReason = 1000

// undo is the part of a settlement that is not a success.
type undo struct {
	ids           []int64
	counted, dead []bool
	delays        []float64 // seconds, negative: unchanged
	reasons       []string
}

func (u *undo) add(id int64, counted, dead bool, delay float64, reason error) {
	u.ids = append(u.ids, id)
	u.counted = append(u.counted, counted)
	u.dead = append(u.dead, dead)
	u.delays = append(u.delays, delay)
	u.reasons = append(u.reasons, reasonText(reason))
}

// settle records what became of the claim's tasks and commits. stored is how
// many were stored; u holds every other one. Nothing is committed unless
// each marked row is accounted for. After an error the claim has been given
// back, or, if the answer to COMMIT was lost, the next claim will tell.
func (c *claim) settle(ctx context.Context, stored int, u undo) error {
	defer c.release()
	if len(c.tasks) != stored+len(u.ids) {
		return fmt.Errorf("settle: %w: %d claimed, %d stored, %d not", errDoubt, len(c.tasks), stored, len(u.ids))
	}
	ctx, cancel := context.WithTimeout(ctx, c.table.publishTimeout)
	defer cancel()
	if len(u.ids) > 0 {
		failpoint("before-undo")
		tag, err := c.conn.Exec(ctx, c.table.undoStmt, u.ids, u.counted, u.dead, u.delays, u.reasons)
		if err != nil {
			return fmt.Errorf("settle: take back the mark of %d tasks: %w", len(u.ids), err)
		}
		if tag.RowsAffected() != int64(len(u.ids)) {
			return fmt.Errorf("settle: %w: %d marks to take back, %d taken", errDoubt, len(u.ids), tag.RowsAffected())
		}
		failpoint("after-undo")
	}
	failpoint("before-commit")
	tag, err := c.conn.Exec(ctx, "commit")
	if err != nil {
		return fmt.Errorf("settle: commit: %w", err)
	}
	// COMMIT of an aborted transaction is no error, only another tag.
	if tag.String() != "COMMIT" {
		return fmt.Errorf("settle: commit: the server answered %s", tag)
	}
	c.conn.Release()
	c.conn = nil
	return nil
}

// reasonText makes an error fit for last_error: printable ASCII, which every
// database encoding has, and bounded. Anything else could abort the settling
// transaction.
func reasonText(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, err.Error())
	if len(s) <= maxReason {
		return s
	}
	return s[:maxReason-len("...")] + "..."
}
