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
	soakSeed     = flag.Uint64("seed", 0, "soak: seed of the first round; the next ones count up (0: by the clock)")
	soakRate     = flag.Float64("rate", 1500, "soak: tasks per second that the producers aim at")
	soakTrace    = flag.Bool("trace", false, "soak: log each fault")
)

// mostTasks bounds a round's memory.
const mostTasks = 3_000_000

// TestSoak has producers enqueue tasks while everything that can fail fails at
// random, and judges by their history, the stream and the table. A round
// follows from its seed, except for what the machine's timing adds.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().Unix())
	}
	var total soakTotals
	for begun, first := time.Now(), true; first || time.Since(begun)+*soakRound <= *soakDuration; seed, first = seed+1, false {
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
	batch, workers := []int{10, 100, 1000}[r.IntN(3)], 1+r.IntN(4)
	w := newWorld(t, worldOptions{
		binary: binary, nodes: 2 + r.IntN(3), wake: wake, window: 30 * time.Minute,
		env: []string{
			fmt.Sprintf("OUTBOX_BATCH=%d", batch), fmt.Sprintf("OUTBOX_WORKERS=%d", workers),
			"OUTBOX_PUBLISH_TIMEOUT=1s", "OUTBOX_SWEEP_INTERVAL=2s",
			"OUTBOX_RETRY_MIN=100ms", "OUTBOX_RETRY_MAX=2s", "OUTBOX_MAX_ATTEMPTS=1000",
		},
	})
	defer func() {
		if t.Failed() {
			t.Errorf("repeat this round with: go test -count=1 -run 'TestSoak$' ./faults -seed=%d -duration=1s -round=%v -rate=%v", seed, *soakRound, *soakRate)
		}
	}()
	t.Logf("%v, %d dispatchers, wake %s, batch %d, %d workers", mode, len(w.nodes), wake, batch, workers)
	log := func(string, ...any) {}
	if *soakTrace {
		log = t.Logf
	}
	begun := time.Now()
	done := w.storm(seed, mode, *soakRound, load{producers: 6, rate: *soakRate, bulk: 500, most: mostTasks, volatile: mode == forgetful}, log)
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

// storm has producers and faults go on for a while, and leaves a world in which
// everything runs and every link is whole.
func (w *world) storm(seed uint64, m mode, lasting time.Duration, l load, log func(string, ...any)) *faultTally {
	w.t.Helper()
	finish := w.produce(seed, l)
	ctx, cancel := context.WithTimeout(w.t.Context(), lasting)
	defer cancel()
	var done faultTally
	var wg sync.WaitGroup
	links := newLane(seed, 1, m, linkFaults)
	links.after = w.survey
	wg.Go(func() { w.follow(ctx, links, &done, log) })
	wg.Go(func() { w.follow(ctx, newLane(seed, 2, m, tableFaults), &done, log) })
	w.follow(ctx, newLane(seed, 0, m, serverFaults), &done, log)
	wg.Wait()
	finish()
	w.survey()
	return &done
}
