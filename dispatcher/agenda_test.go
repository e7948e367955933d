package dispatcher

import (
	"testing"
	"time"
)

func TestAgendaTakesTheEarliest(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	for _, tt := range []struct {
		name string
		a    agenda
		want time.Time
		why  string
	}{
		{"only the sweep", agenda{sweep: at(500)}, at(500), "sweep"},
		{"a scheduled task before it", agenda{sweep: at(500), due: at(200)}, at(200), "timer"},
		{"a scheduled task after it", agenda{sweep: at(500), due: at(700)}, at(500), "sweep"},
		{"an owed look before both", agenda{sweep: at(500), due: at(200), owed: at(100), why: "recheck"}, at(100), "recheck"},
		{"the ration holds all back", agenda{sweep: at(500), due: at(200), owed: at(100), why: "recheck", notBefore: at(600)}, at(600), "recheck"},
	} {
		if got, why := tt.a.wholeAt(); !got.Equal(tt.want) || why != tt.why {
			t.Errorf("%s: got %v for %q, want %v for %q", tt.name, got.Sub(t0), why, tt.want.Sub(t0), tt.why)
		}
	}
}

func TestAgendaOweKeepsTheEarlier(t *testing.T) {
	t0 := time.Unix(1000, 0)
	var a agenda
	a.owe(t0.Add(100*time.Millisecond), "recheck")
	a.owe(t0.Add(200*time.Millisecond), "later")
	if a.why != "recheck" {
		t.Errorf("a later debt replaced an earlier one: %q", a.why)
	}
	a.owe(t0, "now")
	if !a.owed.Equal(t0) || a.why != "now" {
		t.Errorf("an earlier debt was not taken: %v, %q", a.owed, a.why)
	}
}

// An expensive look at the whole table must not be repeated so often that it
// takes more than its share, but the sweep must never starve.
func TestAgendaRationsByCost(t *testing.T) {
	t0 := time.Unix(1000, 0)
	for _, tt := range []struct{ cost, interval, want time.Duration }{
		{200 * time.Microsecond, 10 * time.Second, 2 * time.Millisecond},
		{47 * time.Millisecond, 10 * time.Second, 470 * time.Millisecond},
		{5 * time.Second, 10 * time.Second, 10 * time.Second},
	} {
		a := agenda{due: t0, owed: t0, why: "recheck"}
		a.looked(t0, tt.cost, tt.interval)
		a.owe(t0, "recheck")
		if at, _ := a.wholeAt(); at.Sub(t0) != tt.want {
			t.Errorf("after a look of %v: the next is due after %v, want %v", tt.cost, at.Sub(t0), tt.want)
		}
		if !a.due.IsZero() || !a.sweep.Equal(t0.Add(tt.interval)) {
			t.Errorf("after a look: due %v, sweep %v", a.due, a.sweep)
		}
	}
}
