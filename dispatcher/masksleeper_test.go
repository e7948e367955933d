package dispatcher

// live is what happens to a dispatcher: the first dies once and is started again,
// the second is stopped once. Either may lose the answer to its set instead.
func (w world) live(i int, s sleeper, add func(string, world)) {
	to := w
	t := &to.sleepers[i]
	switch {
	case s.life == alive && i == 0 && !s.spent:
		*t = sleeper{life: dead, spent: true, zombie: s.set}
		add("dies", to)
	case s.life == dead:
		*t = sleeper{spent: true, zombie: s.zombie}
		if w.bug != noCover {
			t.mask.leave()
		}
		add("is started again", to)
	case s.life == alive && i == 1 && !s.spent && !s.set:
		*t = sleeper{life: gone, spent: true}
		if s.mask.stage != stageAsleep && w.bug != noHandOver {
			t.life = stopping
			to.masked = false
		}
		add("stops, clearing the lease", to)
	case s.life == stopping:
		t.life = gone
		to.sleepers[1-i].cover = to.sleepers[1-i].life == alive
		add("asks the others to cover", to)
	}
}

// dispatch is what the dispatcher does.
func (w world) dispatch(i int, s sleeper, add func(string, world)) {
	to := w
	t := &to.sleepers[i]
	if s.zombie {
		w.linger(i, add)
	}
	switch {
	case s.set:
		t.set = false
		to.masked = true
		add("sets the lease", to)
		if !s.spent {
			to.masked = w.masked
			t.zombie, t.spent = true, true
			t.mask.leave()
			add("gets no answer to its set", to)
		}
		return
	case s.looking && !s.owed:
		t.looking, t.xmin = false, 0
		if w.bug == checkLate {
			s.xmin = w.xmin()
		}
		t.mask.saw(s.xmin)
		if w.bug == clearLast && t.mask.stage == stageAsleep {
			to.masked = false
		}
		add("checks the barrier", to)
		return
	}
	if s.wake || s.owed || s.mask.stage == stagePolling {
		w.claim(i, add)
	}
	if s.cover {
		to := w
		t := &to.sleepers[i]
		t.cover = false
		if s.mask.stage != stagePolling {
			t.mask.leave()
		}
		add("covers", to)
	}
	w.unmask(i, s, add)
}

// linger is what becomes of a set whose answer was lost: it is executed late, or
// its value, which is absolute, is past.
func (w world) linger(i int, add func(string, world)) {
	to := w
	to.sleepers[i].zombie = false
	add("has its late set dropped", to)
	to.masked = true
	add("has its late set executed", to)
}

// claim takes all that is visible. After one that found something it may poll.
func (w world) claim(i int, add func(string, world)) {
	to := w
	t := &to.sleepers[i]
	t.wake, t.owed = false, false
	found := false
	for j := range to.producers {
		if p := &to.producers[j]; p.due() {
			p.sent, found = true, true
		}
	}
	add("claims", to)
	if found && t.mask.stage != stagePolling {
		t.mask.hold()
		t.set = true
		add("claims, and will poll", to)
	}
}

// unmask is the way back to sleep.
func (w world) unmask(i int, s sleeper, add func(string, world)) {
	to := w
	t := &to.sleepers[i]
	switch s.mask.stage {
	case stageAsleep:
	case stagePolling:
		t.mask.leave()
		if w.bug == clearLast {
			t.mask.cleared()
		}
		add("has enough", to)
	case stageClearing:
		switch {
		case s.zombie && w.bug != noPatience:
			return
		case w.bug == drawFirst && s.drew == 0:
			to.xid++
			t.drew = to.xid
			add("draws a transaction id too early", to)
			return
		}
		to.masked = false
		t.mask.cleared()
		if w.bug == noBarrier {
			t.mask.drew(0)
		}
		add("clears the lease", to)
	case stageDrawing:
		if w.bug == drawFirst {
			t.mask.drew(uint64(s.drew))
			t.drew = 0
		} else {
			to.xid++
			t.mask.drew(uint64(to.xid))
		}
		add("draws a transaction id", to)
	case stageWaiting:
		if !s.looking {
			w.look(i, add)
		}
	}
}

// look is what a dispatcher does that waits at the barrier.
func (w world) look(i int, add func(string, world)) {
	to := w
	t := &to.sleepers[i]
	t.looking, t.owed, t.xmin = true, w.leftBehind(), w.xmin()
	if w.bug == upperEnd {
		t.xmin = uint64(w.xid) + 1
	}
	add("looks", to)
}
