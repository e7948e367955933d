package dispatcher

import (
	"errors"
	"sync"
	"time"
)

// claimers is how many claims a long pass makes at once. One connection alone
// cannot claim as fast as the tasks of its claims are published.
const claimers = 2

// pass claims until a claim comes back short, walking forward: each claim
// starts where the last one ended, past the dead index entries that it left. A
// hot pass starts a little before now, a full one at the beginning. It returns
// how many tasks it claimed.
func (l *looker) pass(hot bool) int {
	p := &pass{hot: hot}
	l.advance(p)
	if !p.over {
		// There is more than one claim's worth.
		var wg sync.WaitGroup
		n := min(claimers, l.d.cfg.Workers)
		if l.d.careful.Load() > 0 {
			n = 1
		}
		for range n {
			wg.Go(func() {
				for l.advance(p) {
				}
			})
		}
		wg.Wait()
	}
	switch {
	case p.err != nil && l.blame(p.err, p.failed):
		// The fault is a row's: go on without it at once.
		l.agenda.owe(time.Now(), "recheck")
	case p.err != nil:
		l.failed(p.err)
	case p.answered:
		l.worked()
	}
	return p.found
}

// pass is what the claimers of one pass share.
type pass struct {
	hot bool

	mu       sync.Mutex
	from     place // where the next claim starts
	found    int   // tasks claimed
	over     bool
	answered bool // the database answered
	err      error
	failed   ask // the claim that failed with err
}

// advance makes one claim of the pass and hands it to a worker. It reports
// whether the pass goes on.
func (l *looker) advance(p *pass) bool {
	select {
	case <-l.claiming.Done():
		return p.end(nil)
	case l.d.slots <- struct{}{}:
	}
	if open, _ := l.d.circuit.open(); open || l.claiming.Err() != nil {
		<-l.d.slots
		return p.end(nil)
	}
	a, goOn := l.ask(p)
	if !goOn {
		<-l.d.slots
		return false
	}
	begun := time.Now()
	c, err := l.d.table.claim(l.inHand, a)
	if err != nil {
		<-l.d.slots
		switch {
		case errors.Is(err, errSwollen):
			l.d.fit.Store(int64(max(1, a.tasks/10)))
		case tookTooLong(err):
			l.d.fit.Store(int64(max(1, a.tasks/2)))
		}
		p.mu.Lock()
		p.failed = a
		p.mu.Unlock()
		return p.end(err)
	}
	l.d.cfg.Observer.Claimed(len(c.tasks), time.Since(begun))
	goOn = p.note(c)
	if len(c.tasks) == 0 {
		<-l.d.slots
		return goOn
	}
	l.d.fit.Store(fitting(c, l.d.cfg.Batch, l.d.cfg.BatchBytes))
	l.d.careful.Add(-min(int64(len(c.tasks)), max(l.d.careful.Load(), 0)))
	failpoint("after-claim")
	// A slot is free, so a worker is.
	l.d.work <- c
	return goOn
}

// fitting is how many tasks like those of the claim fit into bytes. A claim
// locks as many rows as it may take and keeps what does not fit locked until it
// is settled, so asking for many more than fit would hide them from others.
func fitting(c *claim, batch, bytes int) int64 {
	if c.bytes == 0 {
		return int64(batch)
	}
	return max(1, min(int64(batch), int64(bytes)*int64(len(c.tasks))/c.bytes))
}

// ask is the next claim of the pass, unless it is over.
func (l *looker) ask(p *pass) (ask, bool) {
	a := ask{hot: p.hot, tasks: int(l.d.fit.Load()), bytes: int64(l.d.cfg.BatchBytes), fetch: fetchLimit(l.d.cfg.NATS)}
	a.large = a.tasks < l.d.cfg.Batch
	if l.d.careful.Load() > 0 {
		a.tasks = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.from = p.from
	return a, !p.over
}

// note moves the pass on to the end of a claim. A short claim ends the pass for
// all: what its snapshot did not show is announced by a wake of its own.
func (p *pass) note(c *claim) (goOn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = true
	p.found += len(c.tasks)
	if c.end.isAfter(p.from) {
		p.from = c.end
	}
	p.over = p.over || !c.more
	return !p.over
}

// end ends the pass for all.
func (p *pass) end(err error) (goOn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.err == nil {
		p.err = err
	}
	return false
}
