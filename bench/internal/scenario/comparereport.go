package scenario

import (
	"fmt"
	"slices"
	"strings"
)

// report fills the report: a part after the other, and in each an entrant after the
// other.
func (m *comparison) report(b *bench) {
	rep, c := b.report, m.cmd
	rep.setting("load", fmt.Sprintf("latency: %g tasks/s on %d connections, slices of %v; drain: %d tasks, watched for %v at most; commits: %d writers for %g s; %d rounds",
		c.Rate, compareProducers, c.Slice, c.Tasks, c.Within, c.Writers, c.Seconds, c.Rounds))
	for _, e := range m.entrants {
		rep.setting(e.Name, e.Title)
	}
	if len(m.latency) > 0 {
		m.reportLatency(rep)
	}
	if len(m.drain) > 0 {
		m.reportDrain(rep)
	}
	if len(m.commits) > 0 {
		m.reportCommits(rep)
	}
	for _, note := range m.notes {
		rep.note("%s", note)
	}
}

// inKey is a name as part of a key.
func inKey(name string) string { return strings.ReplaceAll(name, "-", "_") }

func (m *comparison) reportLatency(rep *report) {
	p50 := map[string]series{}
	medians, tails := bars{Name: "p50"}, bars{Name: "p99"}
	var names []string
	var cdf []line
	for _, e := range m.entrants {
		slices := m.latency[e.Name]
		if len(slices) == 0 {
			continue
		}
		all := newDurations()
		var p99 series
		for _, t := range slices {
			p50[e.Name] = append(p50[e.Name], t.delivery.ms(50))
			p99 = append(p99, t.delivery.ms(99))
			all.merge(t.delivery)
		}
		rep.row(e.Name+", commit to delivery, p50", "ms", p50[e.Name])
		rep.row(e.Name+", commit to delivery, p99", "ms", p99)
		rep.key("p50_ms_"+inKey(e.Name), p50[e.Name].median())
		rep.key("p99_ms_"+inKey(e.Name), all.ms(99))
		names = append(names, e.Name)
		medians.Values, tails.Values = append(medians.Values, p50[e.Name].median()), append(tails.Values, all.ms(99))
		cdf = append(cdf, line{Name: e.Name, Points: all.cdf()})
	}
	rep.chart(chart{Name: "compare-latency", Title: fmt.Sprintf("Commit to delivery at %g tasks/s", m.cmd.Rate), Y: "ms", LogY: true, Groups: names, Bars: []bars{medians, tails}})
	rep.chart(chart{Name: "compare-latency-cdf", Title: fmt.Sprintf("Commit to delivery at %g tasks/s", m.cmd.Rate), X: "ms", Y: "percent of the tasks", LogX: true, Lines: cdf})
	own := p50[ownName].median()
	if floor := m.best(p50, false, func(e entrant) bool { return e.Floor }); floor > 0 {
		// What a dual write takes less is what a task that cannot be lost costs; the floor of
		// such a task is measured by latency.
		rep.key("latency_vs_dual_write", own/floor)
	}
	if polling := m.best(p50, false, func(e entrant) bool { return e.Polls && e.Defaults }); polling > 0 {
		rep.target("latency_vs_best_polling", polling/own, polling/own >= wantOverPolling, "at least "+number(wantOverPolling))
		rep.key("latency_vs_best_polling", polling/own)
	}
}

// best is the least median, or with most the greatest, among the peers that count, 0 if
// there are none.
func (m *comparison) best(of map[string]series, most bool, counts func(entrant) bool) float64 {
	var found series
	for _, e := range m.entrants {
		if s := of[e.Name]; e.variant == nil && len(s) > 0 && counts(e) {
			found = append(found, s.median())
		}
	}
	if len(found) == 0 {
		return 0
	}
	if most {
		return slices.Max(found)
	}
	return slices.Min(found)
}

func (m *comparison) reportDrain(rep *report) {
	speed := bars{Name: "drain"}
	var names []string
	for _, e := range m.entrants {
		s := m.drain[e.Name]
		if len(s) == 0 {
			continue
		}
		rep.row(e.Name+", drain", "tasks/s", s)
		rep.key("drain_per_s_"+inKey(e.Name), s.median())
		names, speed.Values = append(names, e.Name), append(speed.Values, s.median())
	}
	rep.chart(chart{Name: "compare-drain", Title: "Draining a backlog", Y: "tasks/s", Groups: names, Bars: []bars{speed}})
	if best := m.best(m.drain, true, func(entrant) bool { return true }); best > 0 {
		ratio := m.drain[ownName].median() / best
		rep.target("drain_vs_best_peer", ratio, ratio >= wantOverPeers, "at least "+number(wantOverPeers))
		rep.key("drain_vs_best_peer", ratio)
	}
}

func (m *comparison) reportCommits(rep *report) {
	rates := map[string]series{}
	speed := bars{Name: "commits"}
	var names []string
	for _, e := range m.entrants {
		var p50, sent series
		for _, run := range m.commits[e.Name] {
			rates[e.Name] = append(rates[e.Name], run.perSecond())
			p50 = append(p50, run.latency.ms(50))
			sent = append(sent, 100*run.sent)
		}
		rep.row(e.Name+", commits", "/s", rates[e.Name])
		rep.row("  a commit, p50", "ms", p50)
		rep.row("  of whose tasks were sent meanwhile", "%", sent)
		rep.key(fmt.Sprintf("commits_%s_%d", inKey(e.Name), m.cmd.Writers), rates[e.Name].median())
		names, speed.Values = append(names, e.Name), append(speed.Values, rates[e.Name].median())
	}
	rep.chart(chart{Name: "compare-commits", Title: fmt.Sprintf("Transactions of %d writers that enqueue a task each", m.cmd.Writers), Y: "commits/s", Groups: names, Bars: []bars{speed}})
	over := func(name string) float64 { return ratios(rates[name], rates[none.name]).median() }
	masked := over(ownName)
	key := fmt.Sprintf("masked_vs_none_%d", m.cmd.Writers)
	rep.target(key, masked, masked >= wantOfNone, "at least "+number(wantOfNone))
	rep.key(key, masked)
	notifying := over(classic.name)
	key = fmt.Sprintf("classic_vs_none_%d", m.cmd.Writers)
	rep.target(key, notifying, notifying < wantClassic, "below "+number(wantClassic))
	rep.key(key, notifying)
}
