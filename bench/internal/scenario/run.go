// Package scenario holds what the benchmark measures, and the rig that the
// scenarios share: servers, writers, clocks and the report.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitFailure = 1 // the scenario could not be measured
	exitUsage   = 2 // the command line is wrong
)

// cli is the command line. A scenario is a command with a file of its own; its
// Run method measures and fills the report.
type cli struct {
	rigFlags
	Long bool   `help:"Measure longer or more, for figures to publish."`
	JSON string `name:"json" placeholder:"FILE" help:"Write the whole report as JSON, too."`
	Plot string `placeholder:"DIR" help:"Draw the charts of the report as SVG into a folder. Builds a program for it."`

	Latency latencyCmd `cmd:"" help:"Time from COMMIT to delivery at a steady rate, beside the floor."`
	Drain   drainCmd   `cmd:"" help:"Speed of sending a backlog, beside the ceilings of database and broker."`
	Commits commitsCmd `cmd:"" help:"Speed of the writers while the dispatcher drains: without trigger, with a classic one and with the masked one."`
	Compare compareCmd `cmd:"" help:"Latency, drain and commits beside other systems that bring tasks from PostgreSQL to JetStream. Takes some minutes."`
	Backlog backlogCmd `cmd:"" help:"Cost of a claim in tables full of rows that no claim wants."`
	Scale   scaleCmd   `cmd:"" help:"Several dispatchers on one outbox: speed, latency, claims in vain, notifications."`
	Outage  outageCmd  `cmd:"" help:"NATS away under load: what it costs meanwhile, and how long catching up takes."`
	Soak    soakCmd    `cmd:"" help:"A steady load with deletion and autovacuum: sizes and latency that stay."`
	Idle    idleCmd    `cmd:"" help:"Statements and CPU of the daemon while nothing happens."`
	Memory  memoryCmd  `cmd:"" help:"Peak memory of the daemon while it drains tasks of 1 MB."`
}

// bench is what a scenario works with.
type bench struct {
	rigFlags
	long   bool
	report *report
	// progress takes lines that tell what is going on; the report goes elsewhere.
	progress io.Writer
}

func (b *bench) say(format string, a ...any) { fmt.Fprintf(b.progress, format+"\n", a...) }

// Run is the program without its process: it measures the scenario that args
// name, prints the report to stdout, and what is going on to stderr. It returns the
// exit code. Peers take part in the scenario compare; without any it is left to the
// program that has them.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, peers ...Peer) int {
	var c cli
	c.Compare.peers = peers
	parser, err := kong.New(&c,
		kong.Name("bench"),
		kong.Description("Measures Outbox Dispatcher from end to end, on servers of its own unless told otherwise. The last line of the output is key=value pairs."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "bench: build the command line: %v\n", err)
		return exitFailure
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v (see bench --help)\n", err)
		return exitUsage
	}
	if kctx.Selected().Name == "compare" && len(peers) == 0 {
		return runPeers(ctx, args, stdout, stderr)
	}
	b := &bench{rigFlags: c.rigFlags, long: c.Long, report: newReport(kctx.Selected().Name), progress: stderr}
	kctx.BindTo(ctx, (*context.Context)(nil))
	if err := kctx.Run(b); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errors.New("stopped"), err)
		}
		fmt.Fprintf(stderr, "bench: %s: %v\n", kctx.Selected().Name, err)
		return exitFailure
	}
	if c.JSON != "" {
		if err := b.report.writeJSON(c.JSON); err != nil {
			fmt.Fprintf(stderr, "bench: %v\n", err)
			return exitFailure
		}
	}
	if c.Plot != "" {
		if err := b.report.plot(ctx, c.Plot, stderr); err != nil {
			fmt.Fprintf(stderr, "bench: %v\n", err)
			return exitFailure
		}
	}
	if err := b.report.print(stdout); err != nil {
		fmt.Fprintf(stderr, "bench: print the report: %v\n", err)
		return exitFailure
	}
	return exitOK
}
