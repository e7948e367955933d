// Peers is the benchmark with other systems beside the product: River, Watermill, a
// polling relay of one's own, and the dual write. It is a module of its own, so that
// nobody else has their dependencies.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	code := scenario.Run(ctx, os.Args[1:], os.Stdout, os.Stderr, peers()...)
	stop()
	os.Exit(code)
}

// peers are in the order of the report.
func peers() []scenario.Peer {
	return []scenario.Peer{
		dualWrite(),
		pollRelay(),
		river("river", false),
		river("river-tuned", true),
		watermill("watermill", false),
		watermill("watermill-tuned", true),
	}
}

// version is that of a module in this program.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "of an unknown version"
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return "of an unknown version"
}
