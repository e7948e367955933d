// Bench measures the dispatcher from end to end against a real PostgreSQL and
// a real NATS JetStream, beside floors and ceilings measured in the same run.
// README.md in this folder tells what each scenario means.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	code := scenario.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
