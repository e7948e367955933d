package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// compareCmd is "bench compare": the product beside other ways to do the same.
type compareCmd struct {
	Peer    []string      `placeholder:"NAME,..." help:"Peers to measure. Default: all."`
	Part    []string      `default:"latency,drain,commits" enum:"latency,drain,commits" help:"What to measure."`
	Rate    float64       `default:"200" help:"Tasks per second of latency, on 4 connections."`
	Slice   time.Duration `placeholder:"TIME" help:"Length of a slice of latency. Default 2s, with --long 10s."`
	Tasks   int           `placeholder:"N" help:"Size of the backlog of drain. Default 100000, with --long 500000."`
	Within  time.Duration `placeholder:"TIME" help:"How long a drain is watched, at most. Default 4s, with --long 20s."`
	Writers int           `default:"64" help:"Writers of commits."`
	Seconds float64       `placeholder:"S" help:"Time that the writers are measured. Default 3, with --long 10."`
	Rounds  int           `placeholder:"N" help:"Rounds of everything, alternating. Default 3, with --long 7."`

	peers []Peer
}

// The project's targets.
const (
	wantOverPolling = 20  // latency of the best polling peer over ours
	wantOverPeers   = 3   // drain over the best peer's
	wantClassic     = 0.2 // commits with the classic trigger over none, at most
)

// ownName is the product's in keys.
const ownName = "outbox"

// comparison is the state of the scenario.
type comparison struct {
	cmd      *compareCmd
	entrants []entrant
	latency  map[string][]*taskTimes
	drain    map[string]series // tasks per second
	commits  map[string][]commitRun
	notes    []string
}

// Run measures and reports.
func (c *compareCmd) Run(ctx context.Context, b *bench) (err error) {
	entrants, err := c.complete(b)
	if err != nil {
		return err
	}
	r, err := b.start(ctx, shortLived)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	m := &comparison{cmd: c, entrants: entrants, latency: map[string][]*taskTimes{}, drain: map[string]series{}, commits: map[string][]commitRun{}}
	for _, part := range []struct {
		name    string
		takes   func(entrant) bool
		measure func(context.Context, *bench, *rig, entrant) error
	}{
		{"latency", func(e entrant) bool { return !e.commitsOnly }, m.measureLatency},
		{"drain", func(e entrant) bool { return !e.commitsOnly && !e.Floor }, m.measureDrain},
		{"commits", func(entrant) bool { return true }, m.measureCommits},
	} {
		if !slices.Contains(c.Part, part.name) {
			continue
		}
		taking := slices.DeleteFunc(slices.Clone(entrants), func(e entrant) bool { return !part.takes(e) })
		for round := range c.Rounds {
			for _, i := range inTurn(len(taking), round) {
				b.say("%s, round %d of %d: %s", part.name, round+1, c.Rounds, taking[i].Title)
				if err := part.measure(ctx, b, r, taking[i]); err != nil {
					return fmt.Errorf("%s of %s: %w", part.name, taking[i].Name, err)
				}
			}
		}
	}
	m.report(b)
	return nil
}

// complete checks the flags, fills in defaults, and returns who takes part.
func (c *compareCmd) complete(b *bench) ([]entrant, error) {
	c.Slice = cmp.Or(c.Slice, time.Duration(b.counted(2, 10))*time.Second)
	c.Tasks = cmp.Or(c.Tasks, b.counted(100_000, 500_000))
	c.Within = cmp.Or(c.Within, time.Duration(b.counted(4, 20))*time.Second)
	c.Rounds = cmp.Or(c.Rounds, b.counted(3, 7))
	c.Seconds = cmp.Or(c.Seconds, float64(b.counted(3, 10)))
	if c.Rate <= 0 || c.Slice < 0 || c.Tasks < 1 || c.Within < 0 || c.Writers < 1 || c.Seconds < 0 || c.Rounds < 1 {
		return nil, errors.New("--rate, --slice, --tasks, --within, --writers, --seconds and --rounds must be positive")
	}
	entrants := []entrant{{Peer: Peer{Name: ownName, Title: "Outbox Dispatcher"}, variant: &masked}}
	for _, v := range []*variant{&none, &classic} {
		entrants = append(entrants, entrant{Peer: Peer{Name: v.name, Title: "Outbox Dispatcher, " + v.title}, variant: v, commitsOnly: true})
	}
	var names []string
	for _, p := range c.peers {
		names = append(names, p.Name)
		if len(c.Peer) == 0 || slices.Contains(c.Peer, p.Name) {
			entrants = append(entrants, entrant{Peer: p})
		}
	}
	for _, name := range c.Peer {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--peer: no peer is called %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return entrants, nil
}
