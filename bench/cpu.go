package main

import (
	"os"
	"time"

	"github.com/prometheus/procfs"
)

// span is what some work took.
type span struct {
	wall time.Duration
	// cpu is what this process, the private PostgreSQL and a daemon used for
	// it, 0 if that cannot be known. Unlike the time it hardly depends on who
	// else uses the machine.
	cpu time.Duration
}

// perSecond is the speed of n tasks.
func (s span) perSecond(n int) float64 { return float64(n) / s.wall.Seconds() }

// cpuPerTask is in microseconds.
func (s span) cpuPerTask(n int) float64 {
	return float64(s.cpu) / float64(time.Microsecond) / float64(n)
}

// watch starts a stopwatch and returns its end. The processes given to the
// latter started with the work and count from their beginning.
func (r *rig) watch() func(pids ...int) span {
	begun, before := time.Now(), r.cpu()
	return func(pids ...int) span {
		s := span{wall: time.Since(begun)}
		after := r.cpu()
		if before == 0 || after == 0 {
			return s
		}
		s.cpu = after - before
		for _, pid := range pids {
			if used, err := usageOf(pid); err == nil {
				s.cpu += used.cpu
			}
		}
		return s
	}
}

// cpu is the CPU time so far of this process, in which the private NATS runs,
// and of the private PostgreSQL. It is 0 if a part runs elsewhere, or if the
// system does not tell.
func (r *rig) cpu() time.Duration {
	if r.postmaster == 0 || !r.ownNATS {
		return 0
	}
	self, err := usageOf(os.Getpid())
	if err != nil {
		return 0
	}
	procs, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	ticks := 0
	for _, p := range procs {
		// A process that ends meanwhile is counted by its parent.
		stat, err := p.Stat()
		if err != nil || (stat.PID != r.postmaster && stat.PPID != r.postmaster) {
			continue
		}
		ticks += int(stat.UTime) + int(stat.STime) // #nosec G115 -- some years
		if stat.PID == r.postmaster {
			ticks += stat.CUTime + stat.CSTime
		}
	}
	return self.cpu + time.Duration(ticks)*tick
}

// tick is the unit of the times in /proc, a constant of Linux.
const tick = time.Second / 100
