package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// installedSQL tells about the insert trigger, whose argument is its version, see
	// trigger.sql; publishedSQL about the publication, see publication.sql.
	installedSQL = `
       coalesce((select case when t.tgenabled not in ('O', 'A') then 'disabled'
                             when t.tgargs = 'v3\000' then 'v3'
                             when t.tgargs = 'v2\000' then 'v2'
                             when t.tgnargs = 0 then 'v1'
                             else 'unknown' end
                   from pg_catalog.pg_trigger as t
                   join pg_catalog.pg_class as c on c.oid = t.tgrelid
                   join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                  where n.nspname = $1 and c.relname = 'outbox' and t.tgname = 'outbox_notify'), 'missing')`
	publishedSQL = `
       coalesce((select case when not p.pubinsert
                               or not exists (select from pg_catalog.pg_publication_rel as r
                                                join pg_catalog.pg_class as c on c.oid = r.prrelid
                                                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                                               where r.prpubid = p.oid and n.nspname = $1 and c.relname = 'outbox') then 'disabled'
                             else 'there' end
                   from pg_catalog.pg_publication as p
                  where p.pubname = '{publication}'), 'missing')`

	// canarySQL sends the canaries that there are to be. A notification makes the
	// statement's commit wait for the lock that all notifications of the cluster
	// take; the settings are for that commit.
	canarySQL = `
       case when $5::boolean or $6::boolean
            then concat(pg_catalog.set_config('synchronous_commit', 'off', true),
                        case when $5::boolean then concat(pg_catalog.set_config('lock_timeout', '500', true),
                                                          pg_catalog.pg_notify($2, $3)) end,
                        case when $6::boolean then pg_catalog.pg_logical_emit_message(true, $2, $3::text) end) end is null`

	// headSQL names the task that a claim of one would take, without looking at its
	// content, which may be what the database stumbles over.
	headSQL = "\nselect id" + lockDueSQL

	// peekSQL is the whole cost of an idle dispatcher: one statement per sweep
	// that says whether anything is due, when the next task will be, and whether what
	// the wakes need is there, and that sends the canaries. The "order by" keeps the plan on
	// the due index whatever the statistics say. The oldest running transaction is that of the
	// snapshot that the rest was seen with.
	peekSQL = `
select (select id
          from {outbox}
         where sent_at is null and dead_at is null and send_after <= now()
         order by send_after
         limit 1) is not null,
       extract(epoch from (
        select send_after
          from {outbox}
         where sent_at is null and dead_at is null and send_after > now()
         order by send_after
         limit 1) - clock_timestamp())::float8,` + installedSQL + "," + publishedSQL + `,
       (select coalesce(pg_catalog.has_sequence_privilege(mask, 'select') and pg_catalog.has_sequence_privilege(mask, 'update'), false)
          from pg_catalog.to_regclass($4) as mask),
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint,
       (extract(epoch from clock_timestamp()) * 1000)::bigint,` + canarySQL + `
`

	sourceSQL = `
select name, pg_catalog.has_table_privilege($1, 'select') and pg_catalog.has_table_privilege($1, 'update')
  from {outbox_source}`
)

// lookTimeout bounds statements that lock nothing. It must outlast a walk over
// very many dead index entries.
const lookTimeout = 10 * time.Second

// outlook is what a peek saw.
type outlook struct {
	due     bool          // something is due; perhaps locked by a claim in hand
	next    time.Duration // until the next scheduled task, if scheduled
	planned bool          // there is a scheduled task
	// trigger is the version of the insert trigger, publication "there", or what is
	// wrong with them.
	trigger, publication string

	masks bool      // the lease is there and may be set
	xmin  uint64    // the oldest transaction that was running
	clock time.Time // the server's
	// silenced is set, with the error, if the notification could not be sent.
	silenced bool
}

// canaries says by which ways to send the canary.
type canaries struct{ notify, wal bool }

// peek looks at the due index without claiming, and sends canaries on the channel.
func (t *table) peek(ctx context.Context, schema, channel, canary string, sending canaries) (o outlook, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var next *float64
	var clock int64 // not a timestamp: the session may write those in any style
	var quiet bool
	err = t.pool.QueryRow(ctx, t.peekStmt, schema, channel, canary, t.maskName, sending.notify, sending.wal).
		Scan(&o.due, &next, &o.trigger, &o.publication, &o.masks, &o.xmin, &clock, &quiet)
	if err != nil {
		// The row came, its commit failed.
		o.silenced = sending.notify && o.trigger != "" && sqlState(err) == "55P03" // lock_not_available
		return o, fmt.Errorf("look for due tasks: %w", err)
	}
	o.clock = time.UnixMilli(clock)
	if next != nil {
		o.planned = true
		o.next = time.Duration(min(*next, (365*24*time.Hour).Seconds()) * float64(time.Second))
	}
	return o, nil
}

// head names the task that a claim of one would take.
func (t *table) head(ctx context.Context, a ask) (id int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.publishTimeout)
	defer cancel()
	if err := t.pool.QueryRow(ctx, t.headStmt, a.hot, a.from.timestamp(), a.from.id, 1, t.held.list(time.Now()), t.leftOut(a, time.Now())).Scan(&id); err != nil {
		return 0, fmt.Errorf("find the oldest due task: %w", err)
	}
	return id, nil
}

// source reads the name that begins every message id of this outbox.
func (t *table) source(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var allowed bool
	if err := t.pool.QueryRow(ctx, t.sourceStmt, t.name).Scan(&name, &allowed); err != nil {
		return "", fmt.Errorf("read outbox_source: %w", err)
	}
	if !allowed {
		return "", errNoRights
	}
	return name, nil
}

var errNoRights = errors.New("no right to select from and update the outbox")

// startupError reports whether err is one that waiting does not cure, and says
// what to do.
func startupError(schema string, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("outbox_source in schema %q is empty: put the source's name back, or run 'dispatcher migrate up' on a fresh schema", schema)
	}
	const rights = "the database role may not read and update the outbox in schema %q: grant it what migrations/README.md lists for a dispatcher: %w"
	if errors.Is(err, errNoRights) {
		return fmt.Errorf(rights, schema, err)
	}
	switch sqlState(err) {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return fmt.Errorf("no outbox in schema %q: run 'dispatcher migrate up' for that schema: %w", schema, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf(rights, schema, err)
	case "28P01", "28000", "3D000": // invalid_password, invalid_authorization_specification, invalid_catalog_name
		return fmt.Errorf("the database does not let us in: %w", err)
	}
	return nil
}
