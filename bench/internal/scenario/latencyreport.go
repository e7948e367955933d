package scenario

import "fmt"

// reportFloor gives product and floor side by side.
func (m *latencyRun) reportFloor(rep *report) {
	row := func(name string, percentile float64, of func(*floorTimes) durations) series {
		var s series
		for _, t := range m.floors {
			s = append(s, of(t).ms(percentile))
		}
		rep.row(name, "ms", s)
		return s
	}
	sum := func(t *floorTimes) durations { return t.sum }
	p50 := m.product.percentiles(50, delivery)
	rep.row("product, commit to delivery, p50", "ms", p50)
	rep.row("product, commit to delivery, p99", "ms", m.product.percentiles(99, delivery))
	if took := m.steps.next(); took.claim.count() > 0 {
		rep.row("  a claim that finds tasks, p50", "ms", series{took.claim.ms(50)})
		rep.row("  publishing them, p50", "ms", series{took.publish.ms(50)})
	}
	floorP50 := row("floor, notify + claim + publish, p50", 50, sum)
	row("floor, notify + claim + publish, p99", 99, sum)
	row("  notify one way, p50", 50, func(t *floorTimes) durations { return t.notify })
	row("  claim round trip, p50", 50, func(t *floorTimes) durations { return t.claim })
	row("  publish round trip, p50", 50, func(t *floorTimes) durations { return t.publish })
	rep.row("product p50 over floor p50, side by side", "", ratios(p50, floorP50))
	all, allFloor := m.product.all(delivery), newDurations()
	for _, t := range m.floors {
		allFloor.merge(t.sum)
	}
	rep.note("%d tasks and %d floor probes measured; p99 below is that of all of them", all.count(), allFloor.count())
	ratio := p50.median() / floorP50.median()
	rep.target("ratio_p50", ratio, ratio <= wantRatio, "at most "+number(wantRatio))
	rep.key("ratio_p50", ratio)
	rep.key("p50_ms", p50.median())
	rep.key("p99_ms", all.ms(99))
	rep.key("floor_p50_ms", floorP50.median())
	rep.key("floor_p99_ms", allFloor.ms(99))
}

// reportWhole gives what the producers see, and the time from when they should have
// begun.
func (m *latencyRun) reportWhole(rep *report) {
	f := m.product
	rep.row("from the time the insert was due to delivery, p50", "ms", f.percentiles(50, whole))
	rep.row("from the time the insert was due to delivery, p99", "ms", f.percentiles(99, whole))
	rep.row("producer behind its schedule, p99", "ms", f.percentiles(99, func(t *taskTimes) durations { return t.late }))
	rep.row("insert and commit, p50", "ms", f.percentiles(50, func(t *taskTimes) durations { return t.commit }))
	rep.key("due_p50_ms", f.all(whole).ms(50))
	rep.key("due_p99_ms", f.all(whole).ms(99))
}

// reportClassic gives what masking costs at a rate at which it is not needed.
func (m *latencyRun) reportClassic(rep *report) {
	masked := m.product.percentiles(50, delivery)
	p50 := m.classic.percentiles(50, delivery)
	rep.row("classic trigger, commit to delivery, p50", "ms", p50)
	rep.row("classic trigger, commit to delivery, p99", "ms", m.classic.percentiles(99, delivery))
	rep.row("product p50 over that, side by side", "", ratios(masked, p50))
	ratio := masked.median() / p50.median()
	key := fmt.Sprintf("masked_vs_classic_%g", m.cmd.Rate)
	rep.target(key, ratio, ratio <= wantAsClassic, "at most "+number(wantAsClassic))
	rep.key(key, ratio)
}

// reportWakes gives the other ways to wake at the same rate.
func (m *latencyRun) reportWakes(rep *report) {
	for _, f := range m.others {
		wake := f.lane.wake
		p50 := f.percentiles(50, delivery)
		rep.row(fmt.Sprintf("--wake=%s, commit to delivery, p50", wake), "ms", p50)
		rep.row(fmt.Sprintf("--wake=%s, commit to delivery, p99", wake), "ms", f.percentiles(99, delivery))
		rep.row("  over --wake=notify, side by side", "", ratios(p50, m.product.percentiles(50, delivery)))
		rep.key("p50_ms_"+string(wake), p50.median())
		rep.key("p99_ms_"+string(wake), f.all(delivery).ms(99))
	}
}

// reportBusy gives the latency while the notifications are masked.
func (m *latencyRun) reportBusy(rep *report) {
	rate := m.cmd.BusyRate
	p50 := m.busy.percentiles(50, delivery)
	rep.row(fmt.Sprintf("product at %g/s, commit to delivery, p50", rate), "ms", p50)
	rep.row(fmt.Sprintf("product at %g/s, commit to delivery, p99", rate), "ms", m.busy.percentiles(99, delivery))
	rep.row(fmt.Sprintf("producer at %g/s behind its schedule, p99", rate), "ms",
		m.busy.percentiles(99, func(t *taskTimes) durations { return t.late }))
	floor := m.relay.percentiles(50, delivery)
	rep.row(fmt.Sprintf("floor at %g/s, claim + publish in a loop, p50", rate), "ms", floor)
	rep.row("product p50 over that, side by side", "", ratios(p50, floor))
	rep.key(fmt.Sprintf("floor_p50_ms_%g", rate), floor.median())
	key := fmt.Sprintf("p50_ms_%g", rate)
	rep.target(key, p50.median(), p50.median() <= wantBusyP50, "at most "+number(wantBusyP50))
	rep.key(key, p50.median())
	rep.key(fmt.Sprintf("p99_ms_%g", rate), m.busy.all(delivery).ms(99))
	rep.row("from the last message to the end of the mask", "ms", m.busy.unmasking)
	rep.target("unmask_ms", m.busy.unmasking.median(), m.busy.unmasking.median() <= wantUnmask, "at most "+number(wantUnmask))
	rep.key("unmask_ms", m.busy.unmasking.median())
}
