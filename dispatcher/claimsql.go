package dispatcher

// The claiming transaction. What must end with it is set for it alone; so is
// all the rest in a session that somebody else may get afterwards, from a
// transaction pooler.
const (
	beginSQL = `begin isolation level read committed read write`

	// settingsSQL lists what a claim's session must be set to. The plan stays
	// on the two indexes whatever the statistics say: a queue table is empty
	// when it is analysed and full when it is claimed from. With row security
	// in the way, row_security = off is an error instead of an empty table.
	// Encoding and formats are what this program reads, whatever the role's
	// settings. The lock timeout is for a lock on the table, which a statement
	// takes before it does anything that it says.
	settingsSQL = `(
         values ('row_security', 'off'),
                ('enable_seqscan', 'off'),
                ('enable_bitmapscan', 'off'),
                ('enable_hashjoin', 'off'),
                ('enable_mergejoin', 'off'),
                ('jit', 'off'),
                ('client_encoding', 'UTF8'),
                ('datestyle', 'ISO'),
                ('bytea_output', 'hex'),
                ('plan_cache_mode', 'force_generic_plan'),
                ('lock_timeout', '1000'),
                ('statement_timeout', $1)
       ) as s(name, value)`

	// sessionSQL sets it for as long as the session lasts, if $2, the process
	// of the handshake, is the one that executes this. They are compared as
	// text, for poolers make up numbers that no process has. $1 is the
	// statement timeout in ms.
	sessionSQL = `
select count(set_config(s.name, s.value, false)) > 0
  from ` + settingsSQL + `
 where pg_catalog.pg_backend_pid()::text = $2`

	// localSQL sets it for the transaction, in a session that is not set so.
	localSQL = `
select count(set_config(s.name, s.value, true))
  from ` + settingsSQL

	// The claim marks due tasks as sent, oldest first, before they are: most
	// succeed, so most cost one write. $1-$3: start after this place in the
	// due index, or a little before now if that is later and $1 is set; $4:
	// number of tasks; $5 and $6: tasks and kinds to leave out; $7: bytes of
	// bodies; $8: largest body to fetch; $9 and $10: limits, see markSQL.
	//
	// The materialised CTE matters: "id in (select ... limit n)" may be run
	// anew for each row and claim far more than n. The size is exact for
	// bytes; jsonb below 2 kB is taken as the size of its binary form.
	//
	// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
	dueSQL = `
  select id, send_after,
         coalesce(octet_length(body),
                  case when pg_catalog.pg_column_size(payload) <= 2000 then pg_catalog.pg_column_size(payload)
                       else octet_length(payload::text) end) as size` + lockDueSQL

	// allSQL takes all of them. If they turn out to be too large together, no
	// body is fetched, and the claim is made again with cutSQL.
	allSQL = `
with taken as materialized (` + dueSQL + `
)`

	// cutSQL takes as many as fit, and at least one. The running sum is a
	// fifth of the cost of claiming small tasks.
	cutSQL = `
with due as materialized (` + dueSQL + `
), taken as materialized (
  select id, size
    from (select id, size,
                 sum(case when size <= $8 then size else 0 end)
                   over (order by send_after, id rows unbounded preceding)
                 - case when size <= $8 then size else 0 end as before
            from due) as running
   where before < $7
)`

	// markSQL begins, before it looks at any row, with the bounds of what a
	// frozen dispatcher or a vanished host can hold ($9: twice the publish
	// timeout, $10: three times, in ms). synchronous_commit is off because
	// losing a mark in a database crash only means a resend, which the stream
	// drops.
	markSQL = `
update {outbox} as o
   set sent_at = now(),
       attempts = least(o.attempts, 2147483646) + 1
  from taken
 where o.id = taken.id
   and (select concat(set_config('idle_in_transaction_session_timeout', $9::text, true),
                      case when current_setting('server_version_num')::int >= 170000
                           then set_config('transaction_timeout', $10::text, true) end,
                      set_config('synchronous_commit', 'off', true))) <> ''
returning o.id, o.kind, o.headers, o.attempts, o.created_at, o.send_after, taken.size,
          case when taken.size <= $8 and (select sum(size) from taken where size <= $8) <= $7::bigint + $8::bigint
               then o.payload end,
          case when taken.size <= $8 and (select sum(size) from taken where size <= $8) <= $7::bigint + $8::bigint
               then o.body end,
          now()`

	// lockDueSQL is where the tasks of a claim come from.
	//
	// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox
	lockDueSQL = `
    from {outbox}
   where sent_at is null
     and dead_at is null
     and send_after <= now()
     and (send_after, id) > (case when $1::boolean then greatest($2::timestamptz, now() - interval '2 seconds')
                                  else $2::timestamptz end, $3::bigint)
     and id <> all($5::bigint[])
     and kind <> all($6::text[])
   order by send_after, id
   limit $4
     for update skip locked`
)
