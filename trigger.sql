-- The wake of a sleeping dispatcher: one notification for each inserting
-- statement, however many rows it inserts, and none while a dispatcher polls. Run
-- it as often as you like.
--
-- Plain SQL for psql and for the program alike; search_path chooses the schema.
-- It carries no data: a lost notification delays a task and loses nothing.

-- The channel is the table's schema, hashed: outboxes of one database do not
-- wake each other's dispatchers, and any schema name gives a short lower-case
-- channel. pg_notify refuses long names, and the producer's insert with it.
create or replace function outbox_notify() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_notify('outbox_' || left(encode(sha256(convert_to(tg_table_schema, 'UTF8')), 'hex'), 32), '');
  return null;
end
$$;

-- Whether an insert has to notify: unless outbox_mask, the argument, promises that a
-- dispatcher looks by itself. A lease of more than 5 s is nobody's: the clock was set
-- back, or the value restored. Every function and operator is named in full, with
-- all parentheses, instead of setting search_path for each call.
create or replace function outbox_unmasked(mask regclass) returns boolean
language plpgsql volatile
as $$
begin
  return coalesce(
    pg_catalog.abs(
      (pg_catalog.pg_sequence_last_value(mask)
        operator(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000))
      operator(pg_catalog.-) 2500)
    operator(pg_catalog.>) 2500, true);
end
$$;
grant execute on function outbox_unmasked(regclass) to public;

-- A transaction that notifies takes a lock of the whole cluster through its commit,
-- so commits run one at a time. Hence the condition. It is evaluated when the
-- statement has written its rows; that order is what the dispatcher relies on. The
-- sequence is bound by its identity, not by its name: no search_path matters. The
-- condition is short because PostgreSQL reads it anew, from its stored text, for
-- every statement, and a function only once per session.
--
-- The argument is the version of this protocol, for dispatchers to read.
--
-- Making the trigger takes a lock that waits for every open producer and makes
-- all later ones wait behind it, so it is left alone when it is as it should be:
-- after insert, for each statement (4), enabled (O, or A for always), with a
-- condition. One that was set to fire always, in sessions with
-- session_replication_role = replica too, stays so.
do $$
declare
  state "char";
  good boolean;
begin
  select tgenabled,
         tgfoid = 'outbox_notify()'::pg_catalog.regprocedure
           and tgargs = 'v3\000'
           and tgtype = 4
           and tgenabled in ('O', 'A')
           and tgqual is not null
    into state, good
    from pg_catalog.pg_trigger
   where tgrelid = 'outbox'::pg_catalog.regclass
     and tgname = 'outbox_notify'
     and not tgisinternal;
  if good is not true then
    create or replace trigger outbox_notify
      after insert on outbox
      for each statement
      when (outbox_unmasked('outbox_mask'))
      execute function outbox_notify('v3');
    if state = 'A' then
      alter table outbox enable always trigger outbox_notify;
    end if;
  end if;
end
$$;

-- The condition reads the sequence with the rights of the producer. It is a time
-- and nothing else, and only a role with UPDATE can set it. The right is granted
-- here, where it is needed, because a restore without privileges takes it away:
-- every INSERT would fail then, or notify, depending on PostgreSQL's version.
do $$
begin
  if not pg_catalog.has_sequence_privilege('public', 'outbox_mask', 'select') then
    grant select on sequence outbox_mask to public;
  end if;
end
$$;
