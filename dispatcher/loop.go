package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// loop looks for due tasks whenever the agenda says so, until claiming ends. It
// alone claims; workers publish and settle beside it, on inHand.
func (d *Dispatcher) loop(claiming, inHand context.Context) {
	l := &looker{d: d, claiming: claiming, inHand: inHand, load: load{eager: d.eager}}
	l.agenda.owe(time.Now(), "sweep")
	defer l.handOver(context.WithoutCancel(inHand))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(l.next()))
		select {
		case <-claiming.Done():
			return
		case from := <-d.wakes:
			l.agenda.hot = true
			d.cfg.Observer.Woke(string(from))
		case <-d.look:
			l.agenda.owe(time.Now(), "recheck")
		case <-d.cover:
			l.cover()
		case <-d.nudge:
		case <-timer.C:
		}
		l.step()
	}
}

// looker is the state of the loop.
type looker struct {
	d        *Dispatcher
	claiming context.Context //nolint:containedctx // lives as long as the loop that made it
	inHand   context.Context //nolint:containedctx // the same
	agenda   agenda
	failures int       // statements that failed in a row
	pause    time.Time // until then the database is left alone

	masks  bool // at the last look, the database would let us mask the notifications
	mask   mask
	load   load
	pollAt time.Time // while polling, the next claim
	heldAt time.Time // when the lease was set
	// clearAt holds back the clearing of a lease that may have been set late.
	clearAt time.Time
	drawnAt time.Time // when the barrier was drawn
	// clock is the server's time, read at clockAt, by the look that sets masks.
	clock, clockAt time.Time
}

// interval is the time between sweeps: short while wakes do not arrive, or are
// masked for no good.
func (l *looker) interval() time.Duration {
	if !l.d.wake.arrive() || l.mask.stage == stageClearing {
		return min(l.d.cfg.PollInterval, l.d.cfg.SweepInterval)
	}
	return l.d.cfg.SweepInterval
}

// next is when the loop must act if nothing happens before.
func (l *looker) next() time.Time {
	at, _ := l.agenda.wholeAt()
	if open, probe := l.d.circuit.open(); open {
		at = probe
	} else if l.agenda.hot {
		at = l.freshAt()
	} else if l.polls() && l.pollAt.Before(at) {
		at = l.pollAt
	}
	if (l.mask.stage == stageClearing || l.mask.stage == stageDrawing) && l.clearAt.Before(at) {
		at = l.clearAt
	}
	if at.Before(l.pause) {
		at = l.pause
	}
	if overdue := l.d.wake.overdue(); !overdue.IsZero() && overdue.Before(at) {
		at = overdue
	}
	return at
}

// step does what is due now.
func (l *looker) step() {
	now := time.Now()
	l.d.wake.giveUp(now)
	// The wake source may have turned unhealthy: the sweep comes sooner then.
	if soon := now.Add(l.interval()); l.agenda.sweep.After(soon) {
		l.agenda.sweep = soon
	}
	if now.Before(l.pause) {
		return
	}
	open, probe := l.d.circuit.open()
	if open {
		l.stopPolling()
	}
	if !l.unmask() {
		return
	}
	if open {
		if !now.Before(probe) {
			l.probe()
		}
		return
	}
	if l.agenda.hot && !now.Before(l.freshAt()) || l.polls() && !now.Before(l.pollAt) {
		l.fresh()
	}
	if at, why := l.agenda.wholeAt(); !time.Now().Before(at) {
		if why == "sweep" && l.interval() != l.d.cfg.SweepInterval {
			why = "poll"
		}
		l.whole(why)
	}
}

// whole looks at the whole table: is anything due, and when is the next task?
func (l *looker) whole(why string) {
	l.d.cfg.Observer.Woke(why)
	begun := time.Now()
	sending := l.d.wake.wantCanaries(begun, l.interval())
	// Not on claiming: a statement cut off in the middle costs its connection.
	o, err := l.d.table.peek(l.inHand, l.d.cfg.Schema, l.d.channel, l.d.canary, sending)
	if o.silenced {
		l.d.wake.notify.lost("no notification can be sent: another session of the cluster has held the lock of all commits that notify for over 500 ms, see pg_locks; it may wait for a synchronous standby: " + err.Error())
		l.d.wake.notify.refused(begun)
		sending.notify = false
		begun = time.Now()
		o, err = l.d.table.peek(l.inHand, l.d.cfg.Schema, l.d.channel, l.d.canary, sending)
	}
	if err != nil {
		l.failed(err)
		return
	}
	if !o.due {
		// With something due, the claim tells whether the database works.
		l.worked()
	}
	l.d.wake.seen(o, l.d.channel)
	if l.d.wake.notify != nil {
		l.maskable(o.masks)
	}
	l.d.wake.sent(sending, begun)
	now := time.Now()
	l.agenda.looked(now, now.Sub(begun), l.interval())
	l.clock, l.clockAt = o.clock, now
	if o.planned {
		l.agenda.due = now.Add(o.next)
	}
	complete := true
	if o.due {
		_, complete = l.pass(false)
	}
	l.saw(o.xmin, complete)
}

// probe asks the broker, while the circuit is open, whether it is back: first
// for its streams, then with one task.
func (l *looker) probe() {
	if !l.d.cfg.NATS.IsConnected() {
		l.d.circuit.trip(errNotOnline)
		return
	}
	if err := l.d.checkStreams(l.claiming); err != nil {
		l.d.circuit.trip(err)
		return
	}
	a := ask{}
	a.tasks, a.bytes, a.fetch = 1, int64(l.d.cfg.BatchBytes), fetchLimit(l.d.cfg.NATS)
	// Another kind than those that got no answer, if there is one.
	c, err := l.d.table.claim(l.inHand, a)
	if err == nil && len(c.tasks) == 0 {
		a.muted = true
		c, err = l.d.table.claim(l.inHand, a)
	}
	if err != nil {
		if l.blame(err, a) {
			l.d.circuit.probeNow()
		} else {
			l.failed(err)
		}
		return
	}
	l.worked()
	if len(c.tasks) > 0 && !l.d.deliverProbe(l.inHand, c) {
		return
	}
	l.d.circuit.reset()
	l.agenda.owe(time.Now(), "recheck")
}

// failed notes a failed statement and leaves the database alone for a while.
func (l *looker) failed(err error) {
	l.failures++
	l.pause = time.Now().Add(backoff{min: 50 * time.Millisecond, max: 5 * time.Second}.delay(l.failures))
	l.agenda.owe(l.pause, "recheck")
	l.d.databaseFailed(err)
	if connectionLost(err) {
		l.d.cfg.Pool.Reset()
	}
}

// connectionLost reports whether the pool's other connections are likely to be
// useless too: the server was stopped or became a standby, or the network
// broke. Finding out one by one would take a failure each.
func connectionLost(err error) bool {
	switch sqlState(err) {
	case "25006", // read_only_sql_transaction
		"57P01", "57P02", "57P03", "57P05": // admin or crash shutdown, cannot connect now, idle timeout
		return true
	case "":
	default:
		return false
	}
	_, unreadable := errors.AsType[pgx.ScanArgError](err)
	return !unreadable && !errors.Is(err, errDoubt) && !errors.Is(err, errSwollen) && !errors.Is(err, errLate)
}

func (l *looker) worked() {
	l.failures = 0
	l.d.databaseOK()
}

// blame narrows down a claim that the database refuses because of what is in
// a row: one by one first, then the task that cannot be claimed is held back.
// It reports whether that is so and another claim is worth making.
func (l *looker) blame(err error, a ask) bool {
	if !rowFault(err) {
		return false
	}
	if a.tasks > 1 {
		l.d.careful.Store(int64(a.tasks))
		return true
	}
	id, headErr := l.d.table.head(l.inHand, a)
	if headErr != nil {
		l.d.log.Error("a task cannot be claimed, nor found", "error", err, "find_error", headErr)
		return false
	}
	l.d.holdBack(id, err)
	return true
}

// tookTooLong reports whether a statement was ended, or is useless, for its time.
func tookTooLong(err error) bool {
	return sqlState(err) == "57014" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errLate)
}

// sqlState is the code of an error that the server answered with, or empty.
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// rowFault reports whether the database refused because of a row's content, not
// because of its own state.
func rowFault(err error) bool {
	code := sqlState(err)
	if code == "" {
		return false
	}
	switch code[:2] {
	case "22", "23", "P0", "54": // data exception, constraint, raised by a trigger, program limit
		return true
	}
	return code == "XX001" || code == "XX002" // data or index corrupted
}
