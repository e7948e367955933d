package scenario

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

// cpu is the CPU time so far of this process, in which the private NATS runs, of
// its children that have ended, and of the private PostgreSQL. It is 0 if a part
// runs elsewhere, or if the system does not tell.
func (r *rig) cpu() time.Duration {
	if r.postmaster == 0 || !r.ownNATS {
		return 0
	}
	procs, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	self, ticks := os.Getpid(), 0
	for _, p := range procs {
		// A process that ends meanwhile is counted by its parent.
		stat, err := p.Stat()
		if err != nil || (stat.PID != self && stat.PID != r.postmaster && stat.PPID != r.postmaster) {
			continue
		}
		ticks += int(stat.UTime) + int(stat.STime) // #nosec G115 -- some years
		if stat.PPID != r.postmaster {
			ticks += stat.CUTime + stat.CSTime
		}
	}
	return time.Duration(ticks) * tick
}

// tick is the unit of the times in /proc, a constant of Linux.
const tick = time.Second / 100

// others starts to measure what other processes take of the machine. Its
// function returns their share of all CPU time since then, 0 to 1, and false if
// that cannot be known.
func (r *rig) others() func() (share float64, ok bool) {
	busy, idle, errBefore := machineTime()
	ours := r.cpu()
	return func() (float64, bool) {
		busyNow, idleNow, err := machineTime()
		oursNow := r.cpu()
		if errBefore != nil || err != nil || ours == 0 || oursNow == 0 {
			return 0, false
		}
		all := busyNow - busy + idleNow - idle
		if all <= 0 {
			return 0, false
		}
		return max(0, busyNow-busy-(oursNow-ours).Seconds()) / all, true
	}
}

// machineTime is the time of all CPUs so far, in seconds.
func machineTime() (busy, idle float64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, 0, err
	}
	c := stat.CPUTotal
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, c.Idle + c.Iowait, nil
}
