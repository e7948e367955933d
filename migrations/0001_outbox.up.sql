-- The outbox: the task table, its checks, and the name of this source.
--
-- Plain SQL for psql and for the program alike. Everything is made in the first
-- schema of search_path; nothing here names a schema of its own.
--
-- Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

-- Raises the error of a failed check. The message of a plain check names the
-- constraint only; a producer needs the value, the limit and the remedy. It is
-- called once a check has failed, never on the way of a good row.
create function outbox_refuse(
  relation oid, rule text, field text, problem text, bound text, remedy text
) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  table_name text;
  table_schema text;
begin
  select c.relname, n.nspname
    into table_name, table_schema
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
   where c.oid = relation;
  raise exception using
    errcode = 'check_violation',
    message = problem,
    detail = bound,
    hint = remedy,
    constraint = rule,
    column = field,
    table = table_name,
    schema = table_schema;
end
$$;

-- Checks run with the rights of whoever inserts, and this grant may be missing
-- where default privileges were revoked from public.
grant execute on function outbox_refuse(oid, text, text, text, text, text) to public;

-- Each check is "good or refused": OR stops at the first true operand, so a
-- good row costs built-in functions only. All of them run again when a
-- dispatcher marks the task, so the dear ones let pass what was attempted
-- before: it was checked when it came.
create table outbox (
  id bigint generated always as identity primary key,
  kind text not null,
  payload jsonb,
  body bytea,
  headers jsonb,
  ordering_key text,
  attempts int not null default 0,
  send_after timestamptz not null default now(),
  created_at timestamptz not null default now(),
  sent_at timestamptz,
  dead_at timestamptz,
  last_error text,

  -- The alphabet keeps wildcards, blanks, empty tokens and "$JS" out of the
  -- subject; the length keeps prefix and kind within a subject of 255 bytes.
  constraint outbox_kind check (
    (octet_length(kind) <= 190 and kind ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$')
    or outbox_refuse(tableoid, 'outbox_kind', 'kind',
      format('kind %s is not usable in a NATS subject (%s bytes)', quote_literal(left(kind, 80)), octet_length(kind)),
      'A kind is 1 to 190 bytes of letters A-Z a-z, digits, "_" and "-", in tokens separated by single dots.',
      'Use a fixed name such as order.created, and put what varies into the payload or the headers.')
  ),

  constraint outbox_payload_or_body check (
    (payload is null) <> (body is null)
    or outbox_refuse(tableoid, 'outbox_payload_or_body', 'payload',
      case when payload is null then 'payload and body are both null' else 'payload and body are both set' end,
      'A task has exactly one message body: payload (JSON) or body (bytes).',
      'Set one of the two columns. For a message without content use body ''''; for JSON null use payload ''null''.')
  ),

  constraint outbox_body_size check (
    body is null
    or octet_length(body) <= 67108864
    or outbox_refuse(tableoid, 'outbox_body_size', 'body',
      format('body is too large (%s bytes)', octet_length(body)),
      'A body is at most 67108864 bytes (64 MiB), the most that a NATS server can be set to take.',
      'Store the content elsewhere and send a reference to it.')
  ),

  -- The message is the text of the payload. It cannot be 10,000 times larger
  -- than the stored form, but nearly (1e131071 is a few bytes), so the text is
  -- made and measured unless the stored form is small enough by itself.
  constraint outbox_payload_size check (
    payload is null
    or pg_column_size(payload) <= 6000
    or attempts > 0
    or octet_length(payload::text) <= 67108864
    or outbox_refuse(tableoid, 'outbox_payload_size', 'payload',
      format('payload is too large (%s bytes as text)', octet_length(payload::text)),
      'A payload is at most 67108864 bytes (64 MiB) as text, the most that a NATS server can be set to take.',
      'Store the content elsewhere and send a reference to it.')
  ),

  constraint outbox_headers check (
    headers is null
    or attempts > 0
    or case when jsonb_typeof(headers) <> 'object' then false else
      octet_length(headers::text) <= 16384
      and jsonb_array_length(jsonb_path_query_array(headers, 'strict $.keyvalue().key')) <= 64
      and not jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string")')
    end
    or outbox_refuse(tableoid, 'outbox_headers', 'headers',
      case
        when jsonb_typeof(headers) <> 'object'
          then format('headers are a JSON %s', jsonb_typeof(headers))
        when octet_length(headers::text) > 16384
          then format('headers are too large (%s bytes)', octet_length(headers::text))
        when jsonb_array_length(jsonb_path_query_array(headers, 'strict $.keyvalue().key')) > 64
          then format('there are too many headers (%s)',
            jsonb_array_length(jsonb_path_query_array(headers, 'strict $.keyvalue().key')))
        else format('the value of header %s is not a string', left(jsonb_path_query_first(headers,
          'strict $.keyvalue() ? (@.value.type() != "string").key')::text, 80))
      end,
      'Headers are null or one JSON object of at most 64 strings and 16384 bytes.',
      'Write headers as {"name": "value"}, numbers in quotes too; larger data belongs into the payload.')
  ),

  -- The list of names is measured first because a regular expression with a
  -- bound as large as 128 takes ten times longer than all other checks together.
  constraint outbox_header_names check (
    headers is null
    or attempts > 0
    or jsonb_typeof(headers) <> 'object'
    or (not jsonb_path_exists(headers,
        'strict $.keyvalue().key ? (!(@ like_regex "^[A-Za-z0-9!#$%&''*+.^_`|~-]+$"))')
      and (octet_length(jsonb_path_query_array(headers, 'strict $.keyvalue().key')::text) <= 128
        or not jsonb_path_exists(headers, 'strict $.keyvalue().key ? (@ like_regex "^.{129}")')))
    or outbox_refuse(tableoid, 'outbox_header_names', 'headers',
      format('header name %s is not usable', left(jsonb_path_query_first(headers,
        'strict $.keyvalue().key ? (!(@ like_regex "^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,128}$"))')::text, 80)),
      'A header name is 1 to 128 characters: ASCII letters, digits and any of !#$%&''*+-.^_`|~.',
      'Leave out blanks, colons, control and non-ASCII characters.')
  ),

  -- The names that NATS or the dispatcher gives a meaning of its own. Nats-TTL,
  -- Nats-Schedule, Nats-Schedule-Target ... and Nats-Trace-Dest are the task's
  -- to set. The pattern is spelled as NATS spells the names, because in some
  -- locales (Turkish) "i" is not the lower case of "I".
  constraint outbox_header_reserved check (
    headers is null
    or attempts > 0
    or jsonb_typeof(headers) <> 'object'
    or not jsonb_path_exists(headers, 'strict $.keyvalue().key ? (@ like_regex "^(Outbox-.*|Status|Description|Nats-(Msg-Id|Expected-.*|Batch-.*|Trace-Only|Incr|Rollup|Scheduler|Schedule-Next|Marker-Reason|Stream|Stream-Source|Sequence|Subject|Time-Stamp|Last-Sequence|Num-Pending|Response-Type|Required-Api-Level))$" flag "i")')
    or outbox_refuse(tableoid, 'outbox_header_reserved', 'headers',
      format('header name %s is reserved', left(jsonb_path_query_first(headers, 'strict $.keyvalue().key ? (@ like_regex "^(Outbox-.*|Status|Description|Nats-(Msg-Id|Expected-.*|Batch-.*|Trace-Only|Incr|Rollup|Scheduler|Schedule-Next|Marker-Reason|Stream|Stream-Source|Sequence|Subject|Time-Stamp|Last-Sequence|Num-Pending|Response-Type|Required-Api-Level))$" flag "i")')::text, 80)),
      'The dispatcher and the NATS server set this header themselves, or would take it as a command.',
      'Choose another name, for example with a prefix of your own such as X-.')
  ),

  constraint outbox_header_values check (
    headers is null
    or attempts > 0
    or jsonb_typeof(headers) <> 'object'
    or not jsonb_path_exists(headers,
      'strict $.* ? (@ like_regex "[\\u0001-\\u0008\\u000a-\\u001f\\u007f-\\u009f]")')
    or outbox_refuse(tableoid, 'outbox_header_values', 'headers',
      format('the value of header %s has a line break or another control character', left(jsonb_path_query_first(headers,
        'strict $.keyvalue() ? (@.value like_regex "[\\u0001-\\u0008\\u000a-\\u001f\\u007f-\\u009f]").key')::text, 80)),
      'A header value is one line of text; tabs and any other Unicode characters are allowed.',
      'Encode the value, for example as base64 or JSON, or move it into the payload.')
  ),

  constraint outbox_ordering_key check (
    ordering_key is null
    or octet_length(ordering_key) between 1 and 255
    or outbox_refuse(tableoid, 'outbox_ordering_key', 'ordering_key',
      format('ordering_key %s has %s bytes', quote_literal(left(ordering_key, 80)), octet_length(ordering_key)),
      'An ordering key is null or 1 to 255 bytes.',
      'Use null for a task without order; shorten a long key with a hash.')
  ),

  -- Outside of these years a client may be unable to read the row: infinity has
  -- no counterpart in most languages, and RFC 3339 has four digits for the year.
  constraint outbox_send_after check (
    (send_after >= '0001-01-01 00:00:00+00' and send_after < '10000-01-01 00:00:00+00')
    or outbox_refuse(tableoid, 'outbox_send_after', 'send_after',
      format('send_after %s is not a usable time', quote_literal(send_after)),
      'send_after is a finite time in the years 1 to 9999.',
      'Leave the column out to send at once; insert the task when it is known that it shall be sent.')
  ),

  constraint outbox_created_at check (
    (created_at >= '0001-01-01 00:00:00+00' and created_at < '10000-01-01 00:00:00+00')
    or outbox_refuse(tableoid, 'outbox_created_at', 'created_at',
      format('created_at %s is not a usable time', quote_literal(created_at)),
      'created_at is a finite time in the years 1 to 9999.',
      'Leave the column out: its default is the time of the transaction.')
  ),

  constraint outbox_state check (
    ((sent_at is null or dead_at is null)
      and (sent_at is null or isfinite(sent_at))
      and (dead_at is null or isfinite(dead_at)))
    or outbox_refuse(tableoid, 'outbox_state', 'sent_at',
      format('sent_at %s and dead_at %s do not go together', quote_nullable(sent_at), quote_nullable(dead_at)),
      'A task is waiting (neither is set), sent (sent_at) or dead (dead_at), at a finite time.',
      'Producers leave both columns out; set one of them to null.')
  ),

  constraint outbox_attempts check (
    attempts >= 0
    or outbox_refuse(tableoid, 'outbox_attempts', 'attempts',
      format('attempts %s is negative', attempts),
      'attempts counts from 0 upwards.',
      'Leave the column out: the dispatcher counts.')
  ),

  constraint outbox_last_error check (
    last_error is null
    or octet_length(last_error) <= 4096
    or outbox_refuse(tableoid, 'outbox_last_error', 'last_error',
      format('last_error is too long (%s bytes)', octet_length(last_error)),
      'last_error is at most 4096 bytes.',
      'Cut the text.')
  )
) with (
  -- A queue changes all of its rows soon after they came: vacuum by count, not
  -- by share of the table, at full speed, and without the exclusive lock that
  -- giving pages back to the system takes.
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off,
  toast.autovacuum_vacuum_scale_factor = 0,
  toast.autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_insert_scale_factor = 0,
  toast.autovacuum_vacuum_cost_delay = 0,
  toast.vacuum_truncate = off
);

-- Without compression the stored size is the real one, which the dispatcher
-- reads without fetching the value, and a task that is written and read once
-- saves the work.
alter table outbox alter column payload set storage external;
alter table outbox alter column body set storage external;

-- What is due, oldest first. The only index that a task passes through besides
-- the primary key.
create index outbox_due on outbox (send_after, id) where sent_at is null and dead_at is null;

-- Dead letters can be listed without reading millions of sent rows; a task that
-- is sent never enters this index.
create index outbox_dead on outbox (id) where dead_at is not null;

-- One row. It is data, so dump and restore keep it together with the tasks.
create table outbox_source (
  only_row boolean primary key default true,
  name text not null default left(replace(gen_random_uuid()::text, '-', ''), 16),

  constraint outbox_source_only_row check (
    only_row
    or outbox_refuse(tableoid, 'outbox_source_only_row', 'only_row',
      'outbox_source has one row only',
      'One outbox is one source.',
      'Update the name of the row that exists, or make a second outbox in another schema.')
  ),
  constraint outbox_source_name check (
    name ~ '^[A-Za-z0-9_-]{1,32}$'
    or outbox_refuse(tableoid, 'outbox_source_name', 'name',
      format('source name %s is not usable in a message id', quote_literal(left(name, 80))),
      'A source name is 1 to 32 letters A-Z a-z, digits, "_" and "-".',
      'Choose a short name that no other outbox of the same stream has.')
  )
);

insert into outbox_source default values;

comment on table outbox is
  'Tasks to send to NATS JetStream. Producers insert kind and payload (or body) in the transaction that changes their data; a dispatcher sends them.';
comment on column outbox.id is 'The task id. Order of insertion, not of commit.';
comment on column outbox.kind is 'What the task is, such as order.created: the NATS subject after the dispatcher''s prefix.';
comment on column outbox.payload is 'The message body as JSON. Exactly one of payload and body is set.';
comment on column outbox.body is 'The message body as bytes.';
comment on column outbox.headers is 'NATS headers, a JSON object of strings.';
comment on column outbox.ordering_key is 'Stored and not used yet: no order is promised, with or without a key.';
comment on column outbox.attempts is 'How often the broker was asked and answered.';
comment on column outbox.send_after is 'Not sent before this time; after a refusal, the time of the next attempt.';
comment on column outbox.created_at is 'When the producer''s transaction began. Part of the message id: never change it.';
comment on column outbox.sent_at is 'When the task was sent; null: not yet.';
comment on column outbox.dead_at is 'When the task was set aside as undeliverable; last_error tells why.';
comment on column outbox.last_error is 'Why the last attempt failed.';
comment on table outbox_source is 'The name of this outbox, in one row.';
comment on column outbox_source.name is
  'Prefix of every message id. Two outboxes that send into one stream must differ here, or the stream drops messages of one as duplicates of the other.';
