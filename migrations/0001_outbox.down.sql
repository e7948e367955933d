-- Removes the outbox with every task in it, sent or not.
drop table outbox;
drop table outbox_source;
drop function if exists outbox_notify();
drop function outbox_refuse(oid, text, text, text, text, text);
