package faults

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is one thing that goes wrong, and is over when run returns. hold is how
// long it shall last. A fault that cannot be had at the moment, because another
// one is in its way, returns false.
type fault struct {
	name   string
	weight int
	mode   mode // 0: any
	netted bool // takes wakes away without a trace: only where a sweep comes soon
	run    func(ctx context.Context, w *world, r *rand.Rand, hold time.Duration) bool
}

// mode says which losses a run may have.
type mode int

const (
	anyMode   mode = iota
	strict         // nothing is lost, nothing is refused
	refusing       // the broker refuses tasks now and then, so attempts are spent
	forgetful      // the database loses what was not flushed
)

func (m mode) String() string { return [...]string{"any", "strict", "refusing", "forgetful"}[m] }

// step is one fault of a plan.
type step struct {
	gap, hold time.Duration // before and during
	fault     *fault
	seed      uint64 // of what the fault chooses
}

// lane is a sequence of faults, one after the other, that follows from its seed
// alone. The lanes of a run go on side by side, so their faults meet.
type lane struct {
	r      *rand.Rand
	faults []fault
	total  int
	after  func() // each fault, if set
}

func newLane(seed uint64, number int, m mode, sweeps bool, catalogue []fault) *lane {
	l := &lane{r: rand.New(rand.NewPCG(seed, uint64(1000+number)))}
	for _, f := range catalogue {
		if (f.mode == anyMode || f.mode == m) && (sweeps || !f.netted) {
			l.faults = append(l.faults, f)
			l.total += f.weight
		}
	}
	return l
}

func (l *lane) next() step {
	s := step{
		gap:  time.Duration(l.r.Int64N(int64(1200 * time.Millisecond))),
		hold: time.Duration(l.r.Int64N(int64(1500 * time.Millisecond))),
		seed: l.r.Uint64(),
	}
	if l.r.IntN(8) == 0 {
		s.hold *= 3 // longer than most timeouts
	}
	pick := l.r.IntN(l.total)
	for i := range l.faults {
		if pick -= l.faults[i].weight; pick < 0 {
			s.fault = &l.faults[i]
			break
		}
	}
	return s
}

// tally counts the faults that were done. Its methods may be called from several
// goroutines.
type faultTally struct {
	mu sync.Mutex
	n  map[string]int
}

func (f *faultTally) add(name string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil {
		f.n = map[string]int{}
	}
	f.n[name] += n
}

func (f *faultTally) total() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.n {
		n += c
	}
	return n
}

func (f *faultTally) addAll(other *faultTally) {
	other.mu.Lock()
	defer other.mu.Unlock()
	for name, n := range other.n {
		f.add(name, n)
	}
}

func (f *faultTally) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.n)) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name + " " + strconv.Itoa(f.n[name]))
	}
	return b.String()
}

// follow does the faults of a lane until ctx ends.
func (w *world) follow(ctx context.Context, l *lane, done *faultTally, log func(string, ...any)) {
	for {
		s := l.next()
		if !wait(ctx, s.gap) {
			return
		}
		begun := time.Now()
		if s.fault.run(ctx, w, rand.New(rand.NewPCG(s.seed, 0)), s.hold) {
			done.add(s.fault.name, 1)
		}
		if l.after != nil {
			l.after()
		}
		log("fault %s, planned for %v, took %v", s.fault.name, s.hold.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	}
}

// A plan is the same for the same seed, whatever the machine does meanwhile.
func TestPlanFollowsFromTheSeed(t *testing.T) {
	t.Parallel()
	for number, catalogue := range [][]fault{serverFaults, linkFaults, tableFaults} {
		a, b := newLane(7, number, strict, true, catalogue), newLane(7, number, strict, true, catalogue)
		other := newLane(8, number, strict, true, catalogue)
		seen, differs := map[string]bool{}, false
		for range 2000 {
			x, y, z := a.next(), b.next(), other.next()
			if x.fault.name != y.fault.name || x.gap != y.gap || x.hold != y.hold || x.seed != y.seed {
				t.Fatalf("lane %d: the same seed gives %v and %v", number, x, y)
			}
			differs = differs || x.seed != z.seed
			seen[x.fault.name] = true
		}
		if !differs {
			t.Errorf("lane %d: two seeds give the same plan", number)
		}
		for _, f := range catalogue {
			if seen[f.name] != (f.mode == anyMode || f.mode == strict) {
				t.Errorf("lane %d: fault %q planned: %t", number, f.name, seen[f.name])
			}
		}
	}
}
