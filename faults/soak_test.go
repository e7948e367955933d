package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/outbox-dispatcher/outbox"
)

var (
	soakDuration = flag.Duration("duration", 2*time.Minute, "soak: go on with new rounds until this is over")
	soakRound    = flag.Duration("round", 40*time.Second, "soak: how long faults happen in one round")
	soakSeed     = flag.Uint64("seed", 1, "soak: seed of the first round; the next ones count up")
	soakRate     = flag.Float64("rate", 1500, "soak: tasks per second that the producers aim at")
	soakTrace    = flag.Bool("trace", false, "soak: log each fault")
)

// mostTasks bounds a round's memory.
const mostTasks = 3_000_000

// TestSoak has producers enqueue tasks while everything that can fail fails at
// random, and judges by their history, the stream and the table. A round
// follows from its seed, except for what the machine's timing adds.
func TestSoak(t *testing.T) {
	var total soakTotals
	begun := time.Now()
	for seed := *soakSeed; seed == *soakSeed || time.Since(begun) < *soakDuration; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { soak(t, seed, binary, &total) })
		if t.Failed() {
			break // the servers' logs and stores of the round are still worth a look
		}
	}
	t.Logf("%d rounds: %s", total.rounds, total.String())
}

// soakTotals adds up the rounds.
type soakTotals struct {
	rounds                                 int
	tasks, stored, unknown, back, vanished int64
	faults                                 faultTally
}

func (s *soakTotals) String() string {
	return fmt.Sprintf("%d tasks enqueued (%d rolled back, %d with unknown outcome, %d taken back by a crash), %d stored; %d faults: %v",
		s.tasks, s.back, s.unknown, s.vanished, s.stored, s.faults.total(), &s.faults)
}

func (s *soakTotals) add(h int64, v Verdict, faults *faultTally) {
	s.rounds++
	s.tasks += h
	s.stored += v.Stored
	s.unknown += v.Unknown
	s.back += v.RolledBack
	s.vanished += v.Vanished
	s.faults.addAll(faults)
}

func soak(t *testing.T, seed uint64, binary string, total *soakTotals) {
	r := rand.New(rand.NewPCG(seed, 0))
	mode := []mode{strict, refusing, forgetful}[seed%3]
	wake := []outbox.Wake{outbox.WakeNotify, outbox.WakeNotify, outbox.WakeNotify, outbox.WakeWAL, outbox.WakePoll}[r.IntN(5)]
	sweep := []time.Duration{2 * time.Second, 2 * time.Second, 10 * time.Minute}[r.IntN(3)]
	batch, workers := []int{10, 100, 1000}[r.IntN(3)], 1+r.IntN(4)
	w := newWorld(t, worldOptions{
		binary: binary, nodes: 2 + r.IntN(3), wake: wake, window: 30 * time.Minute,
		env: []string{
			fmt.Sprintf("OUTBOX_BATCH=%d", batch), fmt.Sprintf("OUTBOX_WORKERS=%d", workers),
			fmt.Sprintf("OUTBOX_SWEEP_INTERVAL=%v", sweep), "OUTBOX_PUBLISH_TIMEOUT=1s",
			"OUTBOX_RETRY_MIN=100ms", "OUTBOX_RETRY_MAX=2s", "OUTBOX_MAX_ATTEMPTS=1000",
		},
	})
	defer func() {
		if t.Failed() {
			t.Errorf("repeat this round with: go test -count=1 -run 'TestSoak$' ./faults -seed=%d -duration=1s -round=%v -rate=%v", seed, *soakRound, *soakRate)
		}
	}()
	t.Logf("%v, %d dispatchers, wake %s, sweep %v, batch %d, %d workers", mode, len(w.nodes), wake, sweep, batch, workers)
	log := func(string, ...any) {}
	if *soakTrace {
		log = t.Logf
	}
	begun := time.Now()
	done := w.storm(seed, storm{mode: mode, sweeps: sweep < time.Minute, lasting: *soakRound, log: log}, load{producers: 6, rate: *soakRate, bulk: int64(max(500, *soakRate/5)), most: mostTasks, volatile: mode == forgetful})
	stormed := time.Since(begun)
	left := w.drain(patience)
	drained := time.Since(begun) - stormed
	e := w.evidence()
	e.Refusals = mode == refusing
	v := Check(e)
	for _, f := range v.Findings {
		t.Errorf("%v", f)
	}
	if left != 0 {
		t.Errorf("%d tasks were left when nothing moved any more", left)
	}
	w.checkLogs()
	total.add(e.Tasks, v, done)
	t.Logf("%d tasks in %v and %v to drain: %d committed, %d rolled back, %d unknown, %d taken back by a crash; %d stored; p50 %v, p99 %v, longest %v; %d faults: %v; findings %v",
		e.Tasks, stormed.Round(time.Second), drained.Round(100*time.Millisecond), v.Committed, v.RolledBack, v.Unknown, v.Vanished, v.Stored,
		v.P50.Round(10*time.Microsecond), v.P99.Round(time.Millisecond), v.Max.Round(time.Millisecond), done.total(), done, v.Counts)
}

// storm says which faults happen, and for how long.
type storm struct {
	mode    mode
	sweeps  bool
	lasting time.Duration
	log     func(string, ...any)
}

// storm has producers and faults go on for a while, and leaves a world in which
// everything runs and every link is whole.
func (w *world) storm(seed uint64, s storm, l load) *faultTally {
	w.t.Helper()
	finish := w.produce(seed, l)
	ctx, cancel := context.WithTimeout(w.t.Context(), s.lasting)
	defer cancel()
	var done faultTally
	var wg sync.WaitGroup
	links := newLane(seed, 1, s.mode, s.sweeps, linkFaults)
	links.after = w.survey
	wg.Go(func() { w.follow(ctx, links, &done, s.log) })
	wg.Go(func() { w.follow(ctx, newLane(seed, 2, s.mode, s.sweeps, tableFaults), &done, s.log) })
	w.follow(ctx, newLane(seed, 0, s.mode, s.sweeps, serverFaults), &done, s.log)
	wg.Wait()
	finish()
	w.survey()
	return &done
}
