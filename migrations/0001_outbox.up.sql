-- The outbox: the task table, its checks, and the name of this source.
--
-- Plain SQL for psql and for the program alike. Everything is made in the first
-- schema of search_path; nothing here names a schema of its own.
--
-- Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

-- What a task must be like: true, or an error that names the value, the limit and the
-- remedy, where the message of a plain check names the constraint only.
--
-- PostgreSQL reads the expression of a table's check anew, from its stored text, for
-- every statement; with the rules in the table that was two thirds of an INSERT's
-- work. A function is read once per session. Setting search_path for each call would
-- cost as much as the rules themselves, so the rules name everything in full, and
-- as OPERATOR() always binds alike, with all parentheses.
create function outbox_check(
  relation oid, kind text, payload jsonb, body bytea, headers jsonb, ordering_key text, attempts int,
  send_after timestamptz, created_at timestamptz, sent_at timestamptz, dead_at timestamptz, last_error text
) returns boolean
language plpgsql volatile
as $$
begin
  -- The usual new task, by few conditions: most of the work is to prepare them, which
  -- each transaction does anew for those that it comes to.
  if (pg_catalog.num_nonnulls(body, headers, ordering_key, sent_at, dead_at, last_error) operator(pg_catalog.=) 0)
    and (attempts operator(pg_catalog.=) 0)
    and (pg_catalog.octet_length(kind) operator(pg_catalog.<=) 190)
    and (kind operator(pg_catalog.~) '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$')
    and (pg_catalog.pg_column_size(payload) operator(pg_catalog.<=) 6000)
    and (send_after operator(pg_catalog.>=) created_at)
    and (send_after operator(pg_catalog.<) pg_catalog.timestamptz '10000-01-01 00:00:00+00')
    and (created_at operator(pg_catalog.>=) pg_catalog.timestamptz '0001-01-01 00:00:00+00')
  then
    return true;
  end if;

  if (pg_catalog.octet_length(kind) operator(pg_catalog.<=) 190)
    -- The alphabet keeps wildcards, blanks, empty tokens and "$JS" out of the
    -- subject; the length keeps prefix and kind within a subject of 255 bytes.
    and (kind operator(pg_catalog.~) '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$')
    and (pg_catalog.num_nulls(payload, body) operator(pg_catalog.=) 1)
    and (body is null or pg_catalog.octet_length(body) operator(pg_catalog.<=) 67108864)
    -- A row that was attempted was checked when it came.
    and (attempts operator(pg_catalog.>=) 0)
    and ((attempts operator(pg_catalog.>) 0)
      -- The message is the text of the payload, which can be ten thousand times
      -- larger than the stored form: 1e131071 is a few bytes.
      or (payload is null
          or (pg_catalog.pg_column_size(payload) operator(pg_catalog.<=) 6000)
          or (pg_catalog.octet_length(payload::pg_catalog.text) operator(pg_catalog.<=) 67108864))
        and (headers is null
          or (pg_catalog.jsonb_typeof(headers) operator(pg_catalog.=) 'object')
            and (pg_catalog.octet_length(headers::pg_catalog.text) operator(pg_catalog.<=) 16384)
            and (pg_catalog.jsonb_array_length(pg_catalog.jsonb_path_query_array(headers, '$.keyvalue().key')) operator(pg_catalog.<=) 64)
            and not pg_catalog.jsonb_path_exists(headers, '$.keyvalue() ? (@.value.type() != "string" || !(@.key like_regex "^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,128}$") || @.key like_regex "^(Outbox-.*|Status|Description|Nats-(Msg-Id|Expected-.*|Batch-.*|Trace-Only|Incr|Rollup|Scheduler|Schedule-Next|Marker-Reason|Stream|Stream-Source|Sequence|Subject|Time-Stamp|Last-Sequence|Num-Pending|Response-Type|Required-Api-Level))$" flag "i" || @.value like_regex "[\\u0001-\\u0008\\u000a-\\u001f\\u007f-\\u009f]")')))
    and (ordering_key is null
      or (pg_catalog.octet_length(ordering_key) operator(pg_catalog.>=) 1)
        and (pg_catalog.octet_length(ordering_key) operator(pg_catalog.<=) 255))
    -- Outside of these years a client may be unable to read the row: infinity has
    -- no counterpart in most languages, and RFC 3339 has four digits for the year.
    and (send_after operator(pg_catalog.>=) pg_catalog.timestamptz '0001-01-01 00:00:00+00')
    and (send_after operator(pg_catalog.<) pg_catalog.timestamptz '10000-01-01 00:00:00+00')
    and (created_at operator(pg_catalog.>=) pg_catalog.timestamptz '0001-01-01 00:00:00+00')
    and (created_at operator(pg_catalog.<) pg_catalog.timestamptz '10000-01-01 00:00:00+00')
    and (sent_at is null or dead_at is null and pg_catalog.isfinite(sent_at))
    and (dead_at is null or pg_catalog.isfinite(dead_at))
    and (last_error is null or pg_catalog.octet_length(last_error) operator(pg_catalog.<=) 4096)
  then
    return true;
  end if;

  -- From here on there is an error in the end, which undoes this setting as well.
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  declare
    -- As NATS spells the names, because in some locales (Turkish) "i" is not the
    -- lower case of "I". The type comes first so that the constants are read once.
    reserved constant jsonpath := jsonpath 'strict $.keyvalue().key ? (@ like_regex "^(Outbox-.*|Status|Description|Nats-(Msg-Id|Expected-.*|Batch-.*|Trace-Only|Incr|Rollup|Scheduler|Schedule-Next|Marker-Reason|Stream|Stream-Source|Sequence|Subject|Time-Stamp|Last-Sequence|Num-Pending|Response-Type|Required-Api-Level))$" flag "i")';
    bad_name constant jsonpath := jsonpath 'strict $.keyvalue().key ? (!(@ like_regex "^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,128}$"))';
    not_string constant jsonpath := jsonpath 'strict $.keyvalue() ? (@.value.type() != "string").key';
    bad_value constant jsonpath := jsonpath 'strict $.keyvalue() ? (@.value like_regex "[\\u0001-\\u0008\\u000a-\\u001f\\u007f-\\u009f]").key';
    earliest constant timestamptz := timestamptz '0001-01-01 00:00:00+00';
    latest constant timestamptz := timestamptz '10000-01-01 00:00:00+00';
    largest constant int := 67108864;
    rule text;
    field text;
    problem text;
    bound text;
    remedy text;
    size bigint;
    names int;
    table_name text;
    table_schema text;
  begin
    if octet_length(kind) > 190 or kind !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' then
      rule := 'outbox_kind';
      field := 'kind';
      problem := format('kind %s is not usable in a NATS subject (%s bytes)', quote_literal(left(kind, 80)), octet_length(kind));
      bound := 'A kind is 1 to 190 bytes of letters A-Z a-z, digits, "_" and "-", in tokens separated by single dots.';
      remedy := 'Use a fixed name such as order.created, and put what varies into the payload or the headers.';

    elsif (payload is null) = (body is null) then
      rule := 'outbox_payload_or_body';
      field := 'payload';
      problem := case when payload is null then 'payload and body are both null' else 'payload and body are both set' end;
      bound := 'A task has exactly one message body: payload (JSON) or body (bytes).';
      remedy := 'Set one of the two columns. For a message without content use body ''''; for JSON null use payload ''null''.';

    elsif octet_length(body) > largest then
      rule := 'outbox_body_size';
      field := 'body';
      problem := format('body is too large (%s bytes)', octet_length(body));
      bound := 'A body is at most 67108864 bytes (64 MiB), the most that a NATS server can be set to take.';
      remedy := 'Store the content elsewhere and send a reference to it.';

    elsif ordering_key is not null and octet_length(ordering_key) not between 1 and 255 then
      rule := 'outbox_ordering_key';
      field := 'ordering_key';
      problem := format('ordering_key %s has %s bytes', quote_literal(left(ordering_key, 80)), octet_length(ordering_key));
      bound := 'An ordering key is null or 1 to 255 bytes.';
      remedy := 'Use null for a task without order; shorten a long key with a hash.';

    elsif send_after < earliest or send_after >= latest then
      rule := 'outbox_send_after';
      field := 'send_after';
      problem := format('send_after %s is not a usable time', quote_literal(send_after));
      bound := 'send_after is a finite time in the years 1 to 9999.';
      remedy := 'Leave the column out to send at once; insert the task when it is known that it shall be sent.';

    elsif created_at < earliest or created_at >= latest then
      rule := 'outbox_created_at';
      field := 'created_at';
      problem := format('created_at %s is not a usable time', quote_literal(created_at));
      bound := 'created_at is a finite time in the years 1 to 9999.';
      remedy := 'Leave the column out: its default is the time of the transaction.';

    elsif sent_at is not null and dead_at is not null or not isfinite(sent_at) or not isfinite(dead_at) then
      rule := 'outbox_state';
      field := 'sent_at';
      problem := format('sent_at %s and dead_at %s do not go together', quote_nullable(sent_at), quote_nullable(dead_at));
      bound := 'A task is waiting (neither is set), sent (sent_at) or dead (dead_at), at a finite time.';
      remedy := 'Producers leave both columns out; set one of them to null.';

    elsif attempts < 0 then
      rule := 'outbox_attempts';
      field := 'attempts';
      problem := format('attempts %s is negative', attempts);
      bound := 'attempts counts from 0 upwards.';
      remedy := 'Leave the column out: the dispatcher counts.';

    elsif octet_length(last_error) > 4096 then
      rule := 'outbox_last_error';
      field := 'last_error';
      problem := format('last_error is too long (%s bytes)', octet_length(last_error));
      bound := 'last_error is at most 4096 bytes.';
      remedy := 'Cut the text.';
    end if;

    if rule is null and payload is not null then
      size := octet_length(payload::text);
      if size > largest then
        rule := 'outbox_payload_size';
        field := 'payload';
        problem := format('payload is too large (%s bytes as text)', size);
        bound := 'A payload is at most 67108864 bytes (64 MiB) as text, the most that a NATS server can be set to take.';
        remedy := 'Store the content elsewhere and send a reference to it.';
      end if;
    end if;

    if rule is null and headers is not null then
      field := 'headers';
      bound := 'Headers are null or one JSON object of at most 64 strings and 16384 bytes.';
      remedy := 'Write headers as {"name": "value"}, numbers in quotes too; larger data belongs into the payload.';
      if jsonb_typeof(headers) <> 'object' then
        rule := 'outbox_headers';
        problem := format('headers are a JSON %s', jsonb_typeof(headers));
      else
        size := octet_length(headers::text);
        names := jsonb_array_length(jsonb_path_query_array(headers, 'strict $.keyvalue().key'));
        if size > 16384 then
          rule := 'outbox_headers';
          problem := format('headers are too large (%s bytes)', size);
        elsif names > 64 then
          rule := 'outbox_headers';
          problem := format('there are too many headers (%s)', names);
        elsif jsonb_path_exists(headers, not_string) then
          rule := 'outbox_headers';
          problem := format('the value of header %s is not a string', left(jsonb_path_query_first(headers, not_string)::text, 80));
        elsif jsonb_path_exists(headers, bad_name) then
          rule := 'outbox_header_names';
          problem := format('header name %s is not usable', left(jsonb_path_query_first(headers, bad_name)::text, 80));
          bound := 'A header name is 1 to 128 characters: ASCII letters, digits and any of !#$%&''*+-.^_`|~.';
          remedy := 'Leave out blanks, colons, control and non-ASCII characters.';
        elsif jsonb_path_exists(headers, reserved) then
          rule := 'outbox_header_reserved';
          problem := format('header name %s is reserved', left(jsonb_path_query_first(headers, reserved)::text, 80));
          bound := 'The dispatcher and the NATS server set this header themselves, or would take it as a command.';
          remedy := 'Choose another name, for example with a prefix of your own such as X-.';
        elsif jsonb_path_exists(headers, bad_value) then
          rule := 'outbox_header_values';
          problem := format('the value of header %s has a line break or another control character', left(jsonb_path_query_first(headers, bad_value)::text, 80));
          bound := 'A header value is one line of text; tabs and any other Unicode characters are allowed.';
          remedy := 'Encode the value, for example as base64 or JSON, or move it into the payload.';
        end if;
      end if;
    end if;

    select c.relname, n.nspname
      into table_name, table_schema
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
     where c.oid = relation;
    raise exception using
      errcode = 'check_violation',
      message = coalesce(problem, 'the task breaks a rule'),
      detail = coalesce(bound, ''),
      hint = coalesce(remedy, ''),
      constraint = coalesce(rule, 'outbox_task'),
      column = coalesce(field, ''),
      table = table_name,
      schema = table_schema;
  end;
end
$$;

-- Checks run with the rights of whoever inserts, and this grant may be missing
-- where default privileges were revoked from public.
grant execute on function outbox_check(
  oid, text, jsonb, bytea, jsonb, text, int, timestamptz, timestamptz, timestamptz, timestamptz, text
) to public;

-- The same for outbox_source: a name that cannot be used, or, with null, a
-- second row.
create function outbox_source_refuse(name text) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if name is null then
    raise exception using
      errcode = 'check_violation',
      message = 'outbox_source has one row only',
      detail = 'One outbox is one source.',
      hint = 'Update the name of the row that exists, or make a second outbox in another schema.',
      constraint = 'outbox_source_only_row';
  end if;
  raise exception using
    errcode = 'check_violation',
    message = format('source name %s is not usable in a message id', quote_literal(left(name, 80))),
    detail = 'A source name is 1 to 32 letters A-Z a-z, digits, "_" and "-".',
    hint = 'Choose a short name that no other outbox of the same stream has.',
    constraint = 'outbox_source_name',
    column = 'name';
end
$$;
grant execute on function outbox_source_refuse(text) to public;

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

  -- A task that is marked as sent was checked when it came, and is checked again
  -- if it comes back: the dispatcher marks very many.
  constraint outbox_task check (
    isfinite(sent_at) and dead_at is null
    or outbox_check(tableoid, kind, payload, body, headers, ordering_key, attempts,
      send_after, created_at, sent_at, dead_at, last_error)
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

  constraint outbox_source_only_row check (only_row or outbox_source_refuse(null)),
  constraint outbox_source_name check (name ~ '^[A-Za-z0-9_-]{1,32}$' or outbox_source_refuse(name))
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
