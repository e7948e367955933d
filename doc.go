// Package outbox is the producer's side of a transactional outbox in PostgreSQL:
// it makes the table and puts tasks into it. A dispatcher (package dispatcher,
// or the program of that name) sends them to NATS JetStream afterwards.
//
// A task is a row of the table outbox, inserted in the transaction that changes
// the producer's own data: if that commits, the task is sent; if it rolls back,
// it never is. A plain INSERT from any language does it:
//
//	INSERT INTO outbox (kind, payload) VALUES ('email', '{"to":"a@example.com"}')
//
// From Go, [Enqueue] and [EnqueueMany] do the same in a transaction of pgx or of
// database/sql. The table's own checks decide what a good task is, for every
// producer alike, and name the value, the limit and the remedy when they refuse.
//
// [Migrate] makes the table; [MigrationSQL] prints what it would run, for psql.
package outbox
