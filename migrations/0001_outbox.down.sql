-- Removes the outbox with every task in it, sent or not.
drop table outbox;
drop table outbox_source;
drop function if exists outbox_notify();
drop function outbox_check(
  oid, text, jsonb, bytea, jsonb, text, int, timestamptz, timestamptz, timestamptz, timestamptz, text
);
drop function outbox_source_refuse(text);
