package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/daemon"
	"github.com/outbox-dispatcher/outbox/internal/natsserver"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

// database is where the demo keeps its outbox.
const database = "postgres"

// stack is all that the demo runs.
type stack struct {
	postgres   *pgserver.Server
	nats       *natsserver.Server
	dispatcher *daemon.Daemon
	pool       *pgxpool.Pool // of the producers
	nc         *nats.Conn    // of the consumer
	js         jetstream.JetStream
	version    string // of PostgreSQL
	http       string // where the dispatcher serves health and metrics
	ready      bool   // all is up

	// undo holds what close does, in reverse order.
	undo []func() error
}

// start starts the servers, makes the outbox, and starts the dispatcher program
// on them, as an operator would. close undoes it, also after an error.
func (s *stack) start(ctx context.Context, binary string, stderr io.Writer) error {
	if err := s.startServers(ctx); err != nil {
		return err
	}
	var err error
	if s.http, err = freeAddress(ctx); err != nil {
		return err
	}
	options := daemon.Options{Binary: binary, DSN: s.postgres.TCPDSN(database), NATSURL: s.nats.URL(), Output: stderr}
	if err := daemon.Run(options, "migrate", "up"); err != nil {
		return err
	}
	s.dispatcher, err = daemon.Start(options, "run", "--create-stream", "--http", s.http, "--log-level", "warn")
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() error {
		err := s.dispatcher.Stop()
		if !s.ready {
			return nil // a signal ends a program that is about to start before it can be graceful
		}
		return err
	})
	return s.connect(ctx)
}

// freeAddress is one that nobody listened on just now.
func freeAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func (s *stack) startServers(ctx context.Context) error {
	var err error
	s.postgres, err = pgserver.Start(ctx, pgserver.Options{TCP: true, Fsync: true})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, s.postgres.Close)
	dir, err := os.MkdirTemp("", "outbox-demo-nats-")
	if err != nil {
		return fmt.Errorf("make a folder for JetStream: %w", err)
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	s.nats, err = natsserver.Start(natsserver.Options{StoreDir: dir})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { s.nats.Stop(); return nil })
	return nil
}

// connect opens the connections of the demo's own producers and consumer.
func (s *stack) connect(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(s.postgres.DSN(database))
	if err != nil {
		return fmt.Errorf("read the address of PostgreSQL: %w", err)
	}
	cfg.MaxConns = producers
	s.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	s.undo = append(s.undo, func() error { s.pool.Close(); return nil })
	if err := s.pool.QueryRow(ctx, "show server_version").Scan(&s.version); err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	s.nc, err = nats.Connect(s.nats.URL(), nats.Name("outbox-demo"))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	s.undo = append(s.undo, func() error { s.nc.Close(); return nil })
	s.js, err = jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return nil
}

// close ends everything, the last started first. It may be called again.
func (s *stack) close() error {
	var errs []error
	for len(s.undo) > 0 {
		last := len(s.undo) - 1
		errs = append(errs, s.undo[last]())
		s.undo = s.undo[:last]
	}
	return errors.Join(errs...)
}

// greet tells how to join in from another terminal.
func (s *stack) greet(w io.Writer, binary string, took time.Duration) {
	dsn, url := s.postgres.TCPDSN(database), s.nats.URL()
	version, _, _ := strings.Cut(s.version, " ")
	if absolute, err := filepath.Abs(binary); err == nil {
		binary = absolute // another terminal is in another folder
	}
	fmt.Fprintf(w, `PostgreSQL %s, NATS %s and the dispatcher are up after %.1f s. Ctrl-C ends it all.

  PostgreSQL  %s
  NATS        %s
  dispatcher  http://%s/metrics and /readyz

From other terminals, wait for a task of kind hello, insert it, and look at the outbox:

  nats --server %s sub '%s.hello'
  %s '%s' -c "INSERT INTO outbox (kind, payload) VALUES ('hello', '{\"to\": \"you@example.com\"}')"
  %s status --database-url '%s'

`, version, natsserver.Version, took.Seconds(), dsn, url, s.http, url, prefix, s.psql(), dsn, binary, dsn)
}

// psql returns how to call psql: it may be installed without being in PATH.
func (s *stack) psql() string {
	beside := filepath.Join(s.postgres.Bindir(), "psql")
	if _, err := exec.LookPath("psql"); err == nil {
		return "psql"
	}
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return "psql"
}
