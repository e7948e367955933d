package dispatcher

// The masked wake. A transaction that notifies holds a lock of the whole cluster
// through its commit, so commits run one at a time while each of them notifies.
// Under load the notifications are of no use either: the dispatcher is awake. So
// it does what a network driver does: it masks the interrupt and polls.
//
// The mask is a lease in the sequence outbox_mask, see trigger.sql: the server
// time until which some dispatcher has promised to look by itself. A producer's
// statement
//
//	a. writes its rows; that gives its transaction an id, if it had none,
//	b. reads the lease, and asks for a notification unless the lease is running,
//	c. commits some time later: the rows become visible, and then the notification,
//	   if there is one, is sent.
//
// The dispatcher
//
//  1. sets the lease when work keeps coming, and renews it,
//  2. polls: it claims again and again, with a short pause when it found nothing,
//
// and when nothing comes any more, goes back to sleep:
//
//  3. sets the lease to 0,
//  4. draws a transaction id X, in a transaction of its own, after step 3,
//  5. looks at the table, and claims what it saw, again and again until the oldest
//     transaction that still ran in the snapshot of the look is younger than X,
//  6. sleeps.
//
// Why no task is left behind by 6: say its producer read the lease before step 3,
// and so did not notify. It had written its row by then (a before b), so its
// transaction got its id before X was drawn (4 after 3): the id is below X. Once no
// transaction below X runs in a snapshot, the producer has committed, or rolled
// back, and the snapshot sees its row (5). Any other producer read the lease after
// step 3 and notifies (b), and its notification comes when its row is visible (c).
//
// Each part is needed. The upper end of the snapshot instead of the lower says
// nothing about the transactions between. X drawn before the lease is cleared
// leaves out a producer that began in between. A look with an older snapshot than
// the one that passed the barrier may be too early.
//
// Several dispatchers share the lease, and each covers what was skipped while it
// held it. Clearing it under another that polls costs a few notifications until
// that one renews it. A dispatcher that dies leaves a lease that runs out; what was
// skipped under it is found by the next sweep of another, or by steps 3 to 5, with
// which each one that may set the lease begins when it starts to listen. One that is
// stopped asks the others to do them in its place. A longer transaction elsewhere
// delays only the end of 5, with producers notifying meanwhile.
//
// The test in mask_test.go searches all interleavings of these steps.
type mask struct {
	stage   stage
	barrier uint64 // X, while waiting
}

// stage is where a dispatcher stands in the protocol.
type stage uint8

const (
	stageAsleep   stage = iota // 6: producers notify
	stagePolling               // 1 and 2: the lease may be running
	stageClearing              // 3 is next
	stageDrawing               // 4 is next
	stageWaiting               // 5
)

// hold begins step 1, from any stage. It comes before the statement is sent: the
// lease may be set even if the answer is lost.
func (m *mask) hold() { m.stage = stagePolling }

// leave begins step 3. It is for one that holds the lease, and for one that takes
// the place of another.
func (m *mask) leave() { m.stage = stageClearing }

// cleared notes that step 3 is done.
func (m *mask) cleared() {
	if m.stage == stageClearing {
		m.stage = stageDrawing
	}
}

// drew notes that step 4 gave x.
func (m *mask) drew(x uint64) {
	if m.stage == stageDrawing {
		m.stage, m.barrier = stageWaiting, x
	}
}

// saw notes a look with a snapshot whose oldest running transaction was xmin, once
// what it saw is claimed.
func (m *mask) saw(xmin uint64) {
	if m.stage == stageWaiting && xmin > m.barrier {
		m.stage = stageAsleep
	}
}
