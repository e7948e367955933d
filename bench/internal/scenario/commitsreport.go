package scenario

import (
	"fmt"
)

// report fills the report: rows for each number of writers, and the pairs.
func (c *commitsCmd) report(b *bench, all []commitRuns, bulk map[string]series) {
	rep := b.report
	rep.setting("product", b.form()+", draining meanwhile")
	rep.setting("load", fmt.Sprintf("writers that commit one INSERT after the other, prepared, %d bytes of payload; %v of each run count, after %v and %d commits of each writer that do not",
		len(payload), c.length(), warmTime, warmCommits))
	for _, runs := range all {
		runs.report(rep)
	}
	for _, v := range bulkVariants {
		rep.row(fmt.Sprintf("%d rows in one statement, %s", c.Bulk, v.title), "ms", bulk[v.name])
	}
	over := ratios(bulk[masked.name], bulk[none.name])
	rep.row("masked over none, round by round", "", over)
	rep.target("bulk_masked_vs_none", over.median(), over.median() <= wantBulk, "at most "+number(wantBulk))
	rep.key("bulk_none_ms", bulk[none.name].median())
	rep.key("bulk_masked_ms", bulk[masked.name].median())
	rep.key("bulk_masked_vs_none", over.median())
}

func (r *commitRuns) report(rep *report) {
	key := func(name string, value float64) { rep.key(name+r.suffix(), value) }
	of := r.title()
	for _, v := range commitVariants {
		row := func(name, unit string, figure func(commitRun) float64) series {
			s := r.series(v, figure)
			rep.row(fmt.Sprintf("%s, %s: %s", of, v.title, name), unit, s)
			return s
		}
		key("commits_"+v.name, row("commits", "per s", func(run commitRun) float64 { return run.perSecond() }).median())
		key("commit_p50_ms_"+v.name, row("commit, p50", "ms", func(run commitRun) float64 { return run.latency.ms(50) }).median())
		key("commit_p99_ms_"+v.name, row("commit, p99", "ms", func(run commitRun) float64 { return run.latency.ms(99) }).median())
		row("tasks sent when the writers stopped", "%", func(run commitRun) float64 { return 100 * run.sent })
	}
	speed := func(run commitRun) float64 { return run.perSecond() }
	ofMasked := r.series(masked, speed)
	ofNone := ratios(ofMasked, r.series(none, speed))
	ofClassic := ratios(ofMasked, r.series(classic, speed))
	notifies := r.series(masked, func(run commitRun) float64 { return run.notifies })
	rep.row(of+": masked over none, round by round", "", ofNone)
	rep.row(of+": masked over classic, round by round", "", ofClassic)
	rep.row(of+": none over classic, the most that can be won", "", ratios(r.series(none, speed), r.series(classic, speed)))
	rep.row(of+", masked: notifications per task", "", notifies)
	rep.row(of+", masked: the same with the time that does not count", "",
		r.series(masked, func(run commitRun) float64 { return run.notifiesAll }))
	walOfNone := ratios(r.series(wal, speed), r.series(none, speed))
	rep.row(of+": following the WAL over none, round by round", "", walOfNone)
	key("wal_vs_none", walOfNone.median())
	key("masked_vs_none", ofNone.median())
	key("masked_vs_classic", ofClassic.median())
	key("notifies_per_task", notifies.median())
	if r.writers != mostWriters {
		return
	}
	rep.target("masked_vs_classic"+r.suffix(), ofClassic.median(), ofClassic.median() >= wantOfClassic, "at least "+number(wantOfClassic))
	if r.delay == 0 {
		rep.target("masked_vs_none_64", ofNone.median(), ofNone.median() >= wantOfNone, "at least "+number(wantOfNone))
		rep.target("wal_vs_none_64", walOfNone.median(), walOfNone.median() >= wantWALOfNone, "at least "+number(wantWALOfNone))
		rep.target("notifies_per_task_64", notifies.median(), notifies.median() <= wantNotifies, "at most "+number(wantNotifies))
	}
}

// title tells the runs apart in the table, suffix in the keys.
func (r *commitRuns) title() string {
	if r.delay > 0 {
		return fmt.Sprintf("%s, flushes %v slower", writersText(r.writers), r.delay)
	}
	return writersText(r.writers)
}

func (r *commitRuns) suffix() string {
	if r.delay > 0 {
		return fmt.Sprintf("_%d_slow", r.writers)
	}
	return fmt.Sprintf("_%d", r.writers)
}

// series is one figure of a variant's runs, in the order of the rounds.
func (r *commitRuns) series(v variant, of func(commitRun) float64) (s series) {
	for _, run := range r.runs[v.name] {
		s = append(s, of(run))
	}
	return s
}

func writersText(n int) string {
	if n == 1 {
		return "1 writer"
	}
	return fmt.Sprintf("%d writers", n)
}
