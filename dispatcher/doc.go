// Package dispatcher publishes the tasks of a PostgreSQL outbox table to NATS
// JetStream, as soon as they are committed, and never loses one.
//
// # Promises
//
//   - A task of a rolled-back transaction is never sent; a committed one is,
//     whatever dies in between.
//   - Two live dispatchers never send the same task. One that is sent twice by a
//     crash carries the same message id, and the stream stores it once, within
//     its duplicate window.
//   - An outage of the broker costs no attempts and creates no dead letters.
//   - A task that can never be sent holds up no other.
//
// # The data path
//
// Three ideas decide it. The table is the truth and a wake is only a hint:
// losing every wake costs latency, never a task. A claim is an open
// transaction: a crash gives its rows back at once, with no lease and no clock.
// The broker drops the twin: every message carries the task's id.
//
//	INSERT ─ commit ─ NOTIFY or log     sweep   next due task   probe
//	                    │                 │          │            │
//	                    ▼                 ▼          ▼            ▼
//	wake    wake.go ────► loop.go: when and how to look (agenda.go, circuit.go)
//	                        │
//	claim   claim.go        ▼  begin; mark due tasks as sent, oldest first
//	                        │
//	publish publish.go      ▼  all of them, then wait for the acknowledgements
//	                        │
//	settle  settle.go       ▼  take the mark back from those not stored; commit
//
// One goroutine, the loop, claims. Workers publish and settle the claims
// beside it, each on the claim's own connection. The claim marks tasks as sent
// before they are, because most will be: one write per task. That makes the
// settlement the dangerous step, so it checks itself: it commits only if every
// marked row was read and is either stored or taken back; any doubt is a
// rollback, and the tasks are due again as they were.
//
// A pass claims until a claim comes back short. Each claim starts where the last
// one ended, so it does not walk again over the dead index entries that the pass
// leaves behind. A hot pass starts a little before now and follows a wake; a look
// at the whole table follows soon after, because a transaction that was open for
// long commits tasks that are older, and is rationed by its cost.
//
// While work keeps coming the loop polls and masks the notifications, which would
// make all writers of the cluster commit one at a time; mask.go has the protocol
// and why it leaves no task behind.
//
// # What a failure means
//
//	unavailable  the broker could not be asked, or its answer was lost:
//	             the claim is released, attempts stay, the circuit opens and
//	             nothing is claimed but single probes until it answers
//	refused      it answered that it would not take this task now: the attempt
//	             counts, the task is retried after a backoff, and becomes a
//	             dead letter after Config.MaxAttempts
//	rejected     it can never take it: a dead letter at once
//
// If some tasks of a claim got an answer and others none, the broker is there:
// those without an answer are held back for some seconds, without an attempt.
//
// # Reading order
//
// task.go, config.go; dispatcher.go starts everything; pool.go; wake.go with
// listen.go and replication.go, wakes.go, standin.go, wakehealth.go with
// wakeneeds.go; loop.go with agenda.go, circuit.go and peek.go; mask.go and
// masksql.go, polling.go with load.go; pass.go; claim.go with claimsql.go and
// read.go; deliver.go; publish.go with message.go, classify.go and explain.go;
// settle.go. held.go keeps bad rows and silent kinds out of claims; broker.go,
// denials.go, streams.go and streamcheck.go look after the broker's side.
package dispatcher
