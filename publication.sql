-- The wake by the write-ahead log: a publication of the inserts, which dispatchers
-- with --wake=wal follow, in place of the trigger, and those with --wake=auto when
-- notifications do not arrive. Producers pay nothing for it. It
-- needs wal_level = logical, the right to create publications in the database, and
-- the table's owner. Run it as often as you like.
--
-- Plain SQL for psql and for the program alike; search_path chooses the schema. The
-- name is that of the channel of trigger.sql: publications belong to the database,
-- so that of each outbox needs a name of its own.
--
-- Only inserts, and of them only the id, where PostgreSQL knows column lists (15 and
-- newer): a wake carries no data. A publication that is as it should be is left alone.
do $$
declare
  name text;
  good boolean;
  columns text := '';
begin
  select 'outbox_' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(n.nspname, 'UTF8')), 'hex'), 32)
    into name
    from pg_catalog.pg_class as c
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
   where c.oid = 'outbox'::pg_catalog.regclass;
  select p.pubinsert and not p.pubupdate and not p.pubdelete and not p.pubtruncate and not p.puballtables
           and (select count(*) = 1 and pg_catalog.bool_and(r.prrelid = 'outbox'::pg_catalog.regclass)
                  from pg_catalog.pg_publication_rel as r
                 where r.prpubid = p.oid)
    into good
    from pg_catalog.pg_publication as p
   where p.pubname = name;
  if good then
    return;
  end if;
  if good is not null then
    execute pg_catalog.format('drop publication %I', name);
  end if;
  if pg_catalog.current_setting('server_version_num')::int >= 150000 then
    columns := '(id)';
  end if;
  execute pg_catalog.format('create publication %I for table only outbox %s with (publish = ''insert'')', name, columns);
end
$$;
