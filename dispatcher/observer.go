package dispatcher

import "time"

// Observer is told of each step of the data path, for metrics. Its methods
// are called from several goroutines at once, on the hot path: they must not
// block, and must not keep the slices. Embed [NopObserver] so that a method
// added later does not break you.
type Observer interface {
	// Woke is called for each wake; source is "notify", "wal", "poll" (the fast
	// look of an unhealthy or absent wake source), "timer" (a task became due),
	// "sweep" (the periodic look), "recheck" (a look soon after work was found,
	// or a wake in vain) or "unmask" (a look on the way back to sleep after the
	// notifications were masked, and when the dispatcher begins to listen).
	Woke(source string)
	// Claimed is called after each claim, also an empty one.
	Claimed(tasks int, took time.Duration)
	// Settled is called once per claim, after its transaction committed.
	// results[i] belongs to tasks[i]; took is the time from the first
	// publish to the last answer.
	Settled(tasks []Task, results []Result, took time.Duration)
	// Released is called when a claim of n tasks was rolled back.
	Released(tasks int, cause error)
}

// NopObserver ignores everything.
type NopObserver struct{}

// Woke implements [Observer].
func (NopObserver) Woke(string) {}

// Claimed implements [Observer].
func (NopObserver) Claimed(int, time.Duration) {}

// Settled implements [Observer].
func (NopObserver) Settled([]Task, []Result, time.Duration) {}

// Released implements [Observer].
func (NopObserver) Released(int, error) {}
