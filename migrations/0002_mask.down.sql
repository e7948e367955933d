-- The trigger that reads the lease goes with it: without trigger.sql of the older
-- version, dispatchers poll.
drop trigger if exists outbox_notify on outbox;
drop function if exists outbox_unmasked(regclass);
drop sequence outbox_mask;
