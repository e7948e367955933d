package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// triggerQuery tells the state of the insert trigger by the argument that carries
// its version; the first version had none.
const triggerQuery = `
select coalesce((
  select case when t.tgenabled not in ('O', 'A') then 'disabled'
              when t.tgargs = 'v3\000' then 'enabled'
              when t.tgnargs = 0 or t.tgargs = 'v2\000' then 'older version'
              else 'unknown version' end
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
   where n.nspname = $1 and c.relname = 'outbox' and t.tgname = 'outbox_notify'), 'missing')`

func (r *statusReader) trigger(ctx context.Context, s *status) error {
	return r.conn.QueryRow(ctx, triggerQuery, r.schema).Scan(&s.Wake.Trigger)
}

// triggerRemedy is "" for a trigger that is as it should be.
func (s *status) triggerRemedy() string {
	up := migrateUp(s.Schema)
	if s.Wake.WAL.used() {
		if s.Wake.Trigger == "missing" {
			return "and not needed: there is a publication"
		}
		up += " --wake=auto"
	}
	switch s.Wake.Trigger {
	case "enabled":
		if s.Wake.WAL.used() {
			return "and a publication, for dispatchers with --wake=auto; without them run " + migrateUp(s.Schema) + " with the --wake that they have"
		}
		return ""
	case "older version":
		return "it costs the writers more than that of this version; run " + up
	case "unknown version":
		return "a newer program made it, use that one; if none did, run " + up
	}
	return "only polling finds new tasks; to wake by it run " + up
}

// mask tells whether a polling dispatcher has masked the notifications.
type mask struct {
	// State is "open" (not masked), "held" (inserts need not notify, for a
	// dispatcher polls), "missing" (the schema is too old to have a mask) or "unknown" (this
	// role may not read it).
	State string `json:"state"`
	// RemainingMS is for how long it is held, if it is not renewed; null unless
	// it is held.
	RemainingMS *int64 `json:"remaining_ms"`
}

// maskQuery reads the lease as the insert trigger does: one of more than five
// seconds is nobody's. The case keeps the sequence from being read without the
// right to.
const maskQuery = `
select c.oid is not null,
       coalesce(has_sequence_privilege(c.oid, 'usage, select'), false),
       case when has_sequence_privilege(c.oid, 'usage, select')
            then ceil(pg_sequence_last_value(c.oid) - extract(epoch from clock_timestamp()) * 1000)::bigint end
  from (select) as one
  left join (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = $1 and c.relname = 'outbox_mask' and c.relkind = 'S') as c on true`

const longestLease = 5000 // ms

func (r *statusReader) mask(ctx context.Context, s *status) error {
	var exists, readable bool
	var left *int64
	if err := r.conn.QueryRow(ctx, maskQuery, r.schema).Scan(&exists, &readable, &left); err != nil {
		return err
	}
	m := &s.Wake.Mask
	switch {
	case !exists:
		m.State = "missing"
	case !readable:
		m.State = "unknown"
	case left != nil && *left > 0 && *left <= longestLease:
		m.State, m.RemainingMS = "held", left
	default:
		m.State = "open"
	}
	return nil
}

// words say what the state means, or what to do about it.
func (m mask) words(schema string) string {
	switch m.State {
	case "missing":
		return "inserts notify under load, too, which slows down the writers; run " + migrateUp(schema)
	case "unknown":
		return "this role may not read it: grant select on sequence " + pgx.Identifier{schema, "outbox_mask"}.Sanitize() + " to it"
	case "held":
		return fmt.Sprintf("masked by a dispatcher that polls, or died, for another %d ms", *m.RemainingMS)
	}
	return "not masked"
}
