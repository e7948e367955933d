package outbox

// Wake is how dispatchers learn of new tasks, and so what an outbox needs beside its
// table.
type Wake string

// The wakes.
const (
	// WakeNotify: the trigger of trigger.sql notifies sleeping dispatchers.
	WakeNotify Wake = "notify"
	// WakeWAL: dispatchers follow the publication of publication.sql. There is no
	// trigger, and producers pay nothing.
	WakeWAL Wake = "wal"
	// WakeAuto: both are there, for dispatchers that take whichever works.
	WakeAuto Wake = "auto"
	// WakePoll: dispatchers look by themselves. There is neither.
	WakePoll Wake = "poll"
)

// sql returns what installs the wake and removes the others, and the name of its file.
func (w Wake) sql() (file, text string) {
	switch w {
	case WakeWAL:
		return "publication.sql", PublicationSQL + dropTriggerSQL
	case WakeAuto:
		return "trigger.sql and publication.sql", TriggerSQL + PublicationSQL
	case WakePoll:
		return "removing the wakes", dropTriggerSQL + dropPublicationSQL
	default:
		return "trigger.sql", TriggerSQL + dropPublicationSQL
	}
}

// What is not there is not touched, because dropping a trigger takes a lock that
// waits for every open producer and makes all later ones wait behind it.
const (
	dropTriggerSQL = `do $$
begin
  if exists (select from pg_catalog.pg_trigger where tgrelid = 'outbox'::pg_catalog.regclass and tgname = 'outbox_notify' and not tgisinternal) then
    drop trigger outbox_notify on outbox;
  end if;
  drop function if exists outbox_notify();
  drop function if exists outbox_unmasked(regclass);
end
$$;
`
	dropPublicationSQL = `do $$
begin
  execute pg_catalog.format('drop publication if exists %I', (
    select 'outbox_' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(n.nspname, 'UTF8')), 'hex'), 32)
      from pg_catalog.pg_class as c
      join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
     where c.oid = 'outbox'::pg_catalog.regclass));
end
$$;
`
)
