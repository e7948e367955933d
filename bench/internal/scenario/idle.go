package scenario

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// idleCmd is "bench idle".
type idleCmd struct {
	Duration time.Duration `placeholder:"TIME" help:"How long to watch. Default 20s, with --long 2m."`
}

const (
	// The design's targets.
	wantIdleQueries = 10 // per minute
	wantIdleCPU     = 1  // percent of one core
	// settle is how long the daemon has, after its first task, to do what
	// follows work: looks at the table soon afterwards, closing of spare
	// connections.
	settle = 3 * time.Second
	// daemonName begins the application_name of the daemon's sessions.
	daemonName = "outbox-dispatcher"
)

// idleSettings make the server log every statement with the session's name.
var idleSettings = map[string]string{
	"log_statement":   "all",
	"log_line_prefix": "%m [%p] %a|",
}

// Run measures and reports.
func (c *idleCmd) Run(ctx context.Context, b *bench) (err error) {
	if b.DSN != "" {
		return errors.New("idle counts the statements in the log of its own server: leave out --dsn")
	}
	length := cmp.Or(c.Duration, time.Duration(b.counted(20, 120))*time.Second)
	if length < time.Second {
		return fmt.Errorf("--duration must be at least 1s, got %v", length)
	}
	b.Process = true
	r, err := b.start(ctx, idleSettings)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, r)
	l, err := r.newLane(ctx)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, l)
	p, err := b.runProduct(ctx, l, nil)
	if err != nil {
		return err
	}
	defer deferClose(ctx, &err, p)
	if err := l.warmUp(ctx, p); err != nil {
		return err
	}
	if err := pause(ctx, p, settle); err != nil {
		return err
	}
	b.say("watching an idle daemon for %v", length)
	return c.watch(ctx, b, r, p, length)
}

func (c *idleCmd) watch(ctx context.Context, b *bench, r *rig, p *product, length time.Duration) error {
	log, err := os.Open(r.serverLog)
	if err != nil {
		return fmt.Errorf("read the server's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("read the server's log: %w", err)
	}
	before, err := usageOf(p.pid)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, p, length); err != nil {
		return err
	}
	took := time.Since(begun)
	after, err := usageOf(p.pid)
	if err != nil {
		return err
	}
	seen, err := countStatements(log, daemonName)
	if err != nil {
		return err
	}
	queries := float64(seen) / took.Minutes()
	cpu := 100 * (after.cpu - before.cpu).Seconds() / took.Seconds()
	b.report.setting("product", "daemon as a process, no tasks, for "+length.String())
	b.report.row("statements", "per minute", series{queries})
	b.report.row("CPU", "% of a core", series{cpu})
	b.report.row("peak resident memory", "MB", series{inMB(after.peak)})
	b.report.target("idle_queries_per_min", queries, queries <= wantIdleQueries, "at most "+number(wantIdleQueries))
	b.report.target("idle_cpu_percent", cpu, cpu < wantIdleCPU, "below "+number(wantIdleCPU))
	b.report.key("idle_queries_per_min", queries)
	b.report.key("idle_cpu_percent", cpu)
	return nil
}

// statementLine is a line of the log that tells of one statement, by either
// protocol; the group is the session's application_name.
var statementLine = regexp.MustCompile(`^[^|]*\[\d+\] ([^|]*)\|LOG:  (?:statement|execute [^:]*): `)

// countStatements counts the statements of the sessions whose name begins with
// name.
func countStatements(log io.Reader, name string) (n int, err error) {
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		if m := statementLine.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], name) {
			n++
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("read the server's log: %w", err)
		}
	}
}

// pause waits while the product runs.
func pause(ctx context.Context, p *product, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.ended:
		return p.died()
	case <-ctx.Done():
		return ctx.Err()
	}
}
