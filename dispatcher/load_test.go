package dispatcher

import (
	"math/rand/v2"
	"testing"
	"time"
)

// drive feeds a load with claims: a task comes every gap, and one claim takes it
// if it waits when the claim begins. Asleep, a task wakes the dispatcher at once;
// while polling a claim is made every pollPause. It returns the share of the time
// that was spent polling.
func drive(l *load, gap, span time.Duration) (polling float64) {
	const claim = 300 * time.Microsecond
	r := rand.New(rand.NewPCG(1, 2))
	start := time.Unix(0, 0)
	next := func(t time.Duration) time.Duration { return t + time.Duration(r.ExpFloat64()*float64(gap)) }
	due, polled := next(0), time.Duration(0)
	for now := time.Duration(0); now < span; {
		begun, was := now, l.polling
		if !was && due > now {
			now = due
		}
		ready := now
		found := 0
		for ; due <= now; due = next(due) {
			found++
		}
		now += claim
		if l.claimed(start.Add(ready), start.Add(now), found) {
			now += pollPause(found)
		}
		if was {
			polled += now - begun
		}
	}
	return float64(polled) / float64(span)
}

func TestPollsOnlyUnderLoad(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gap    time.Duration
		lo, hi float64
	}{
		{"a task per second", time.Second, 0, 0},
		{"50 tasks per second", 20 * time.Millisecond, 0, 0.02},
		{"200 tasks per second", 5 * time.Millisecond, 0, 0.05},
		{"3,000 tasks per second", time.Second / 3000, 0.9, 1.01},
		{"20,000 tasks per second", time.Second / 20000, 0.99, 1.01},
	} {
		if got := drive(&load{}, tt.gap, time.Minute); got < tt.lo || got > tt.hi {
			t.Errorf("%s: polled %.3f of the time, want %v to %v", tt.name, got, tt.lo, tt.hi)
		}
	}
}

// Polling ends some 20 ms after the last task, not at the first claim in vain.
func TestPollingEndsSoonAfterTheLastTask(t *testing.T) {
	var l load
	drive(&l, time.Second/20000, time.Second)
	at, n := time.Unix(10, 0), 0
	for ; l.claimed(at, at, 0); n++ {
		at = at.Add(time.Millisecond)
	}
	if n < 10 || n > 25 {
		t.Errorf("it ended after %d claims in vain", n)
	}
}

// A claim that takes long, or waits for a worker, is no sleep: with a backlog or a
// distant database the notifications are of no more use.
func TestSlowClaimsAreLoad(t *testing.T) {
	var l load
	now := time.Unix(0, 0)
	for range beginScore {
		ready := now
		now = now.Add(10 * scoreGap)
		l.claimed(ready, now, 1000)
	}
	if !l.polling {
		t.Errorf("does not poll after %d claims one after the other", beginScore)
	}
}

// After a pause the count begins anew: four tasks in an hour are no load.
func TestScatteredTasksAreNoLoad(t *testing.T) {
	var l load
	for i := range 100 {
		now := time.Unix(0, 0).Add(time.Duration(i) * (scoreGap + time.Millisecond))
		if l.claimed(now, now, 1) {
			t.Fatalf("polls after %d tasks", i+1)
		}
	}
}

// A phase that was not worth while puts off the next, ever longer; one that was
// does not.
func TestUselessPollingIsPutOff(t *testing.T) {
	var l load
	now := time.Unix(0, 0)
	step := func(found int) bool {
		now = now.Add(time.Millisecond)
		return l.claimed(now, now, found)
	}
	useless := func() (wait time.Duration) {
		begun := now
		for !step(1) {
		}
		wait = now.Sub(begun)
		for step(0) {
		}
		return wait
	}
	var waits []time.Duration
	for range 8 {
		waits = append(waits, useless())
	}
	if waits[0] > 10*time.Millisecond || waits[3] <= waits[2] || waits[7] < maxTrial*9/10 || waits[7] > maxTrial*11/10 {
		t.Errorf("the phases began after %v", waits)
	}
	for !step(1) {
	}
	for range 200 {
		step(1)
	}
	for step(0) {
	}
	if wait := useless(); wait > 10*time.Millisecond {
		t.Errorf("after a phase that was worth while the next began after %v", wait)
	}
}

// Without wakes any claim that finds work may be the beginning of a load, at most one a
// second is tried in vain.
func TestPollsOnSuspicionWithoutWakes(t *testing.T) {
	l := load{unwoken: true}
	now := time.Unix(0, 0)
	trials, claims := 0, 0
	for range 100 { // a task every 200 ms
		now = now.Add(200 * time.Millisecond)
		if !l.claimed(now, now, 1) {
			continue
		}
		trials++
		if l.proven(now) {
			t.Error("a single task proves a load")
		}
		for ; l.polling; claims++ {
			now = now.Add(time.Millisecond)
			l.claimed(now, now, 0)
		}
	}
	now = now.Add(2 * maxTrial)
	for l.claimed(now, now, 1); now.Sub(l.begun) < worthwhile; l.claimed(now, now, 1) {
		now = now.Add(time.Millisecond)
	}
	if !l.polling || !l.proven(now) {
		t.Errorf("polling %t: %v of it prove nothing", l.polling, worthwhile)
	}
	if trials < 15 || trials > 25 || claims > 10*trials {
		t.Errorf("%d trials in 20 s with %d claims in vain", trials, claims)
	}
}

func TestPollPause(t *testing.T) {
	for found, want := range map[int]time.Duration{
		0: 500 * time.Microsecond, 1: 100 * time.Microsecond, 5: 500 * time.Microsecond, 30: 3 * time.Millisecond, 1 << 40: 3 * time.Millisecond,
	} {
		if got := pollPause(found); got != want {
			t.Errorf("after %d tasks: %v, want %v", found, got, want)
		}
	}
}
