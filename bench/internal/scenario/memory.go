package scenario

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// memoryCmd is "bench memory".
type memoryCmd struct {
	Tasks int `placeholder:"N" help:"Tasks of 1 MB. Default 1000, with --long 10000."`
	Small int `placeholder:"N" help:"Tasks of 200 bytes, drained before. Default 50000, with --long 500000."`
}

const (
	// wantPeak is the design's target for the daemon's peak memory, in MB.
	wantPeak = 256
	// taskBytes is the size of a body: 1 MB, which with the headers is just
	// below the default max_payload of a NATS server.
	taskBytes = 1_000_000
	// streamBytes bounds the stream, so that the drain needs no 10 GB of disk.
	streamBytes = 256 << 20
)

// Run measures and reports.
func (c *memoryCmd) Run(ctx context.Context, b *bench) (err error) {
	n := cmp.Or(c.Tasks, b.counted(1000, 10_000))
	if n < 1 || c.Small < 0 {
		return fmt.Errorf("--tasks and --small must be positive, got %d and %d", n, c.Small)
	}
	b.Process = true
	r, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	b.say("an idle daemon")
	if err := c.small(ctx, b, r, 0, "idle_rss_mb", "peak resident memory of an idle daemon"); err != nil {
		return err
	}
	few := cmp.Or(c.Small, b.counted(50_000, 500_000))
	b.say("draining %d small tasks", few)
	if err := c.small(ctx, b, r, few, "drain_small_peak_rss_mb", fmt.Sprintf("the same, %d tasks of %d bytes drained", few, smallBytes)); err != nil {
		return err
	}
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	if err := l.bound(ctx); err != nil {
		return err
	}
	b.say("inserting %d tasks of 1 MB", n)
	if err := l.fillLarge(ctx, n); err != nil {
		return err
	}
	b.say("draining them")
	return c.drain(ctx, b, l, n)
}

// small notes the peak of the memory of a daemon that drains n small tasks, and one more
// that shows that it runs.
func (c *memoryCmd) small(ctx context.Context, b *bench, r *rig, n int, key, title string) (err error) {
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	if err := l.fill(ctx, n); err != nil {
		return err
	}
	p, err := b.runDaemon(ctx, l)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	if err := l.add(ctx); err != nil {
		return err
	}
	if err := l.drained(ctx, p, n+1, patience(n, smallBytes), nil); err != nil {
		return err
	}
	used, err := usageOf(p.pid)
	if err != nil {
		return err
	}
	b.report.row(title, "MB", series{inMB(used.peak)})
	b.report.key(key, inMB(used.peak))
	return nil
}

func (c *memoryCmd) drain(ctx context.Context, b *bench, l *lane, n int) (err error) {
	p, err := b.runDaemon(ctx, l)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	begun := time.Now()
	if err := l.drained(ctx, p, n, patience(n, taskBytes), nil); err != nil {
		return err
	}
	took := time.Since(begun)
	used, err := usageOf(p.pid)
	if err != nil {
		return err
	}
	if err := l.verify(ctx, n); err != nil {
		return err
	}
	peak := inMB(used.peak)
	b.report.setting("product", "daemon as a process")
	b.report.setting("load", fmt.Sprintf("%d tasks of 1 MB in the table", n))
	b.report.row("peak resident memory", "MB", series{peak})
	b.report.row("drained, start of the daemon included", "MB/s", series{float64(n) * taskBytes / 1e6 / took.Seconds()})
	b.report.row("CPU time of the daemon", "s", series{used.cpu.Seconds()})
	b.report.target("drain_1mb_peak_rss_mb", peak, peak < wantPeak, "below "+number(wantPeak))
	b.report.key("drain_1mb_peak_rss_mb", peak)
	b.report.key("tasks", float64(n))
	return nil
}

// bound makes the lane's stream keep the newest messages only. What it took is
// still counted.
func (l *lane) bound(ctx context.Context) error {
	s, err := l.rig.js.Stream(ctx, l.stream)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", l.stream, err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxBytes, cfg.Discard = streamBytes, jetstream.DiscardOld
	if _, err := l.rig.js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("bound stream %s: %w", l.stream, err)
	}
	return nil
}

// fillLarge inserts n tasks of 1 MB. The body is compressed once, in a table
// whose storage allows it, and stays so when it is copied: on the disk a task is
// small, for the daemon it is as large as any.
func (l *lane) fillLarge(ctx context.Context, n int) error {
	conn, err := l.rig.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Release()
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{`create temporary table large (body bytea)`, nil},
		{`insert into large select substr(convert_to(repeat('0123456789abcdef', $1 / 16 + 1), 'UTF8'), 1, $1)`, []any{taskBytes}},
		{l.named(`insert into {outbox} (kind, body) select $1, body from large, generate_series(1, $2)`), []any{kind, n}},
		{`drop table large`, nil},
	} {
		if _, err := conn.Exec(ctx, step.sql, step.args...); err != nil {
			return fmt.Errorf("insert %d tasks of 1 MB: %w", n, err)
		}
	}
	return l.rest(ctx)
}

func inMB(bytes uint64) float64 { return float64(bytes) / 1e6 }
