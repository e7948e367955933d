-- Removes the outbox with every task in it, sent or not.
do $$
begin
  execute pg_catalog.format('drop publication if exists %I', (
    select 'outbox_' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(n.nspname, 'UTF8')), 'hex'), 32)
      from pg_catalog.pg_class as c
      join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
     where c.oid = 'outbox'::pg_catalog.regclass));
end
$$;
drop table outbox;
drop table outbox_source;
drop function if exists outbox_notify();
drop function outbox_check(
  oid, text, jsonb, bytea, jsonb, text, int, timestamptz, timestamptz, timestamptz, timestamptz, text
);
drop function outbox_source_refuse(text);
