-- The wake of a sleeping dispatcher: one notification for each inserting
-- statement, however many rows it inserts. Run it as often as you like.
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

-- Making the trigger takes a lock that waits for every open producer and makes
-- all later ones wait behind it, so it is left alone when it is as it should be:
-- after insert, for each statement (4), enabled (O, or A for always).
do $$
begin
  if not exists (
    select from pg_catalog.pg_trigger
     where tgrelid = 'outbox'::pg_catalog.regclass
       and tgname = 'outbox_notify'
       and tgfoid = 'outbox_notify()'::pg_catalog.regprocedure
       and tgtype = 4
       and tgenabled in ('O', 'A')
       and tgqual is null
       and not tgisinternal
  ) then
    create or replace trigger outbox_notify
      after insert on outbox
      for each statement execute function outbox_notify();
  end if;
end
$$;
