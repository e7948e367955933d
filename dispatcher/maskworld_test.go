package dispatcher

import "fmt"

// The model: two producers and two dispatchers with the lease between them. Each
// step is one that the database executes at once. The dispatchers' decisions are
// those of mask itself.

// bug is what a variant of the protocol does wrong.
type bug string

const (
	correct        bug = ""
	noBarrier      bug = "no barrier"
	upperEnd       bug = "pg_snapshot_xmax for xmin"
	checkLate      bug = "the barrier is checked with a later snapshot than the table"
	drawFirst      bug = "the transaction id is drawn before the lease is cleared"
	clearLast      bug = "the lease is cleared after the barrier"
	readEarly      bug = "the trigger reads the lease before there is a transaction id"
	noCover        bug = "a dispatcher begins without covering for a dead one"
	noHandOver     bug = "a dispatcher stops without asking the others to cover"
	noPatience     bug = "a lease of unknown fate is cleared at once"
	noNotification bug = "the trigger does not notify at all"
)

// producer inserts one task in a transaction.
type producer struct {
	step   uint8 // see produce
	xid    uint8
	notify bool // a notification is sent with the commit
	sent   bool // its task is
}

const (
	begun uint8 = iota
	early       // has read the lease, in a variant
	numbered
	written
	ready // to commit
	committed
	rolledBack
)

func (p producer) over() bool    { return p.step == committed || p.step == rolledBack }
func (p producer) due() bool     { return p.step == committed && !p.sent }
func (p producer) running() bool { return p.xid > 0 && !p.over() }

// sleeper is a dispatcher.
type sleeper struct {
	mask    mask
	life    life
	wake    bool // a notification came
	cover   bool // another asks to cover
	owed    bool // the last look saw something to claim
	set     bool // setting the lease is the next step
	zombie  bool // the answer to the set was lost: it may be executed yet
	looking bool // it claims what a look saw, before it believes the look
	xmin    uint64
	drew    uint8
	spent   bool // it died, stopped or lost an answer: once is enough
}

type life uint8

const (
	alive life = iota
	dead
	stopping
	gone
)

// world is a state of all.
type world struct {
	bug       bug
	masked    bool  // the lease is running
	xid       uint8 // the last that was given out
	producers [2]producer
	sleepers  [2]sleeper
}

// a move leads to a next state.
type move struct {
	what string
	to   world
}

// moves lists all steps that can be next.
func (w world) moves() (all []move) {
	add := func(what string, to world) { all = append(all, move{what, to}) }
	for i, p := range w.producers {
		w.produce(i, p, func(what string, to world) { add(fmt.Sprintf("producer %d %s", i, what), to) })
	}
	for i, s := range w.sleepers {
		say := func(what string, to world) { add(fmt.Sprintf("dispatcher %d %s", i, what), to) }
		w.live(i, s, say)
		if s.life == alive {
			w.dispatch(i, s, say)
		}
	}
	if w.masked {
		to := w
		to.masked = false
		add("the lease runs out", to)
	}
	return all
}

func (w world) produce(i int, p producer, add func(string, world)) {
	to := w
	q := &to.producers[i]
	switch p.step {
	case begun, early:
		if w.bug == readEarly && p.step == begun {
			q.notify, q.step = !w.masked, early
			add("reads the lease too early", to)
			return
		}
		to.xid++
		q.xid, q.step = to.xid, numbered
		add("gets a transaction id", to)
	case numbered:
		q.step = written
		add("writes its row", to)
	case written:
		if w.bug != readEarly {
			q.notify = !w.masked
		}
		q.notify = q.notify && w.bug != noNotification
		q.step = ready
		add(fmt.Sprintf("reads the lease, notify=%v", q.notify), to)
	case ready:
		q.step = rolledBack
		add("rolls back", to)
		q.step = committed
		if q.notify {
			for j := range to.sleepers {
				to.sleepers[j].wake = to.sleepers[j].life == alive
			}
		}
		add("commits", to)
	}
}

// xmin is the oldest running transaction, or the next one.
func (w world) xmin() uint64 {
	xmin := uint64(w.xid) + 1
	for _, p := range w.producers {
		if p.running() {
			xmin = min(xmin, uint64(p.xid))
		}
	}
	return xmin
}

// atRest reports whether nothing happens any more by itself.
func (w world) atRest() bool {
	for _, p := range w.producers {
		if !p.over() {
			return false
		}
	}
	for _, s := range w.sleepers {
		idle := s.life == gone || s.life == alive && s.mask.stage == stageAsleep && !s.wake && !s.owed && !s.cover && !s.set && !s.looking
		if !idle {
			return false
		}
	}
	return true
}

// leftBehind reports whether a committed task is not sent.
func (w world) leftBehind() bool { return w.producers[0].due() || w.producers[1].due() }
