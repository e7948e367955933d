-- The lease of polling dispatchers: a server time in milliseconds since 1970 until
-- which one of them has promised to look by itself, so that inserting transactions
-- need not notify. A sequence, because setval is seen by all sessions at once,
-- whatever becomes of the transaction, and needs no row lock.
create sequence outbox_mask as bigint minvalue 0 start with 0;

comment on sequence outbox_mask is
'lease of polling dispatchers: until this server time, in ms since 1970, the insert trigger need not notify';
