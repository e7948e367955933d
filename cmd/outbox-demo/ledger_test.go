package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLedger(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	type counts struct{ Inserted, Delivered, Lost, Duplicated, Foreign int64 }
	for name, c := range map[string]struct {
		happens func(*ledger)
		want    counts
		maxMS   float64
	}{
		"in order": {
			happens: func(l *ledger) { l.commit(1, at(0)); l.arrive(1, at(7)) },
			want:    counts{Inserted: 1, Delivered: 1}, maxMS: 7,
		},
		"the message overtakes the reply to commit": {
			happens: func(l *ledger) { l.arrive(1, at(0)); l.commit(1, at(7)) },
			want:    counts{Inserted: 1, Delivered: 1},
		},
		"lost": {
			happens: func(l *ledger) { l.commit(1, at(0)); l.commit(2, at(0)); l.arrive(2, at(0)) },
			want:    counts{Inserted: 2, Delivered: 1, Lost: 1},
		},
		"twice": {
			happens: func(l *ledger) { l.commit(1, at(0)); l.arrive(1, at(1)); l.arrive(1, at(2)) },
			want:    counts{Inserted: 1, Delivered: 1, Duplicated: 1}, maxMS: 1,
		},
		"twice, and both overtake": {
			happens: func(l *ledger) { l.arrive(1, at(0)); l.arrive(1, at(1)); l.commit(1, at(2)) },
			want:    counts{Inserted: 1, Delivered: 1, Duplicated: 1},
		},
		"of somebody else": {
			happens: func(l *ledger) { l.arrive(3, at(0)); l.stray(); l.arrive(-1, at(0)); l.arrive(1<<62, at(0)) },
			want:    counts{Foreign: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			c.happens(l)
			v := l.verdict()
			got := counts{v.inserted, v.delivered, v.lost, v.duplicated, v.foreign}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			if got := float64(v.latency.Max()) / 1e6; got < c.maxMS*0.99 || got > c.maxMS*1.01 {
				t.Errorf("longest latency %v ms, want %v", got, c.maxMS)
			}
		})
	}
}

func TestTakeStartsAnew(t *testing.T) {
	l := newLedger()
	l.commit(1, time.Now())
	l.arrive(1, time.Now())
	if got := l.take(); got.inserted != 1 || got.delivered != 1 || got.latency.TotalCount() != 1 {
		t.Errorf("first second: %+v", got)
	}
	if got := l.take(); got.inserted != 0 || got.delivered != 0 || got.latency.TotalCount() != 0 {
		t.Errorf("second second: %+v", got)
	}
	if got := l.verdict(); got.inserted != 1 || got.delivered != 1 {
		t.Errorf("in all: %+v", got)
	}
}

func TestJudge(t *testing.T) {
	good := verdict{tally: tally{inserted: 5, delivered: 5}}
	with := func(change func(*verdict)) verdict { v := good; change(&v); return v }
	for name, c := range map[string]struct {
		verdict     verdict
		count       int
		interrupted bool
		want        string
	}{
		"good":                           {verdict: good, count: 5},
		"lost":                           {verdict: with(func(v *verdict) { v.lost = 1 }), count: 5, want: "1 tasks were committed"},
		"lost without a count":           {verdict: with(func(v *verdict) { v.lost = 1 }), want: "1 tasks were committed"},
		"duplicated":                     {verdict: with(func(v *verdict) { v.duplicated = 2 }), count: 5, want: "2 messages arrived again"},
		"foreign":                        {verdict: with(func(v *verdict) { v.foreign = 3 }), count: 5, want: "3 messages arrived that"},
		"foreign without a count":        {verdict: with(func(v *verdict) { v.foreign = 3 })},
		"too few":                        {verdict: good, count: 6, want: "5 tasks were inserted, not 6"},
		"interrupted":                    {verdict: good, count: 6, interrupted: true, want: "interrupted after 5 of 6"},
		"interrupted without a count":    {verdict: good, interrupted: true},
		"interrupted when all was there": {verdict: good, count: 5, interrupted: true},
	} {
		err := judge(c.verdict, settings{Count: c.count}, c.interrupted)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
