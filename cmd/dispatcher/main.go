// Command dispatcher sends the tasks of a PostgreSQL outbox to NATS JetStream.
// See "dispatcher --help" and the README.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// The first signal asks for a graceful stop, the second ends the process,
	// however soon after the first it comes.
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitKilled)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
