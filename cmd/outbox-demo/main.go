// Command outbox-demo shows the whole way of a task on one machine: a private
// PostgreSQL, a NATS server with JetStream, the real dispatcher program between
// them, and plain SQL inserts whose messages it times from commit to delivery.
// It leaves nothing behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// The limits of the settings.
const (
	minRate  = 0.1
	maxRate  = 5000.0
	maxCount = 10_000_000
)

// settings are the command line: kong makes the parser and the help from it.
type settings struct {
	Help       bool    `short:"h" help:"Show help."`
	Dispatcher string  `default:"bin/dispatcher" env:"DEMO_DISPATCHER" placeholder:"FILE" help:"The dispatcher program to run, by default ${default}."`
	Rate       float64 `default:"20" env:"DEMO_RATE" placeholder:"N" help:"Tasks to insert per second, 0.1 to 5000, by default ${default}."`
	Count      int     `default:"0" env:"DEMO_COUNT" placeholder:"N" help:"Tasks to insert in all; then the exit status is 0 only if each arrived exactly once. By default 0: until Ctrl-C."`
}

func (s settings) validate() error {
	if !(s.Rate >= minRate && s.Rate <= maxRate) { // so that NaN fails, too
		return fmt.Errorf("--rate must be %g to %g tasks per second, got %g", minRate, maxRate, s.Rate)
	}
	if s.Count < 0 || s.Count > maxCount {
		return fmt.Errorf("--count must be 0 (until Ctrl-C) to %d tasks, got %d", maxCount, s.Count)
	}
	if _, err := os.Stat(s.Dispatcher); err != nil {
		return fmt.Errorf("--dispatcher: %w: build the program with \"make build\"", err)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends the demo in order; after it the default is back, so
	// that a second one ends it at once.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "outbox-demo:", err)
		os.Exit(1)
	}
}

// run is the program without its process. It ends when ctx does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var s settings
	parser, err := kong.New(&s, kong.Name("outbox-demo"), kong.Writers(stdout, stderr), kong.NoDefaultHelp(),
		kong.Description("Shows tasks on their way from plain SQL to JetStream, on private servers."))
	if err != nil {
		return fmt.Errorf("make the command line: %w", err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return err
	}
	if s.Help {
		return parsed.PrintUsage(false)
	}
	if err := s.validate(); err != nil {
		return err
	}
	return demo(ctx, s, stdout, stderr)
}

// demo starts everything, lets tasks flow, and tells what became of them.
func demo(ctx context.Context, s settings, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	stack := &stack{}
	defer func() { err = errors.Join(err, stack.close()) }()
	book := newLedger()
	err = stack.start(ctx, s.Dispatcher, stderr)
	var messages *subscription
	if err == nil {
		messages, err = subscribe(ctx, stack, book)
	}
	if err != nil {
		return stopped(ctx, err, s, stdout)
	}
	defer messages.stop()
	stack.ready = true
	stack.greet(stdout, s.Dispatcher, time.Since(began))

	report := startReport(stdout, book)
	err = produce(ctx, stack, s, book)
	if err == nil {
		err = awaitArrivals(stack, book)
	}
	report.stop()
	if err != nil {
		return err
	}
	return settle(ctx, stack, messages, book, s, stdout)
}

// stopped tells of a start that did not succeed. What fails after Ctrl-C fails
// because of it, and is not worth a word; but tasks that were asked for are
// missing then.
func stopped(ctx context.Context, err error, s settings, stdout io.Writer) error {
	switch {
	case ctx.Err() == nil:
		return err
	case s.Count > 0:
		return fmt.Errorf("interrupted before the first of %d tasks", s.Count)
	}
	_, err = fmt.Fprintln(stdout, "stopped")
	return err
}
