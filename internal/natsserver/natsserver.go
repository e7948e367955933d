// Package natsserver runs a NATS server with JetStream inside this process,
// for the demo, the benchmarks and the tests. The dispatcher itself never
// links it.
package natsserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
)

// startTimeout bounds the wait for a server to accept connections. Rebuilding
// a large store happens within it.
const startTimeout = 60 * time.Second

// Options are the settings of a [Server].
type Options struct {
	// StoreDir is where JetStream keeps its files. Required. It is created
	// if missing and never removed.
	StoreDir string
	// Port is the port of 127.0.0.1 to listen on. Default 0: a free one. A
	// negative port means not to listen at all; the server is then reached
	// through [Server.InProcessConn] only.
	Port int
	// Config is text in the server's own configuration language, for users,
	// permissions, TLS, limits and the like. StoreDir and Port win over what
	// it says. Default: none.
	Config string
}

// Server is a running server. Its methods may be called from several
// goroutines.
type Server struct {
	s *server.Server
}

// Start starts a server and waits until it accepts connections and JetStream
// is up. It fails if the port is taken, the store cannot be used or the
// configuration is wrong. The caller must Stop the server.
func Start(o Options) (*Server, error) {
	opts, err := parse(o)
	if err != nil {
		return nil, fmt.Errorf("read the NATS server's settings: %w", err)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("create a NATS server: %w", err)
	}
	// A server that cannot start logs the reason and goes on waiting, so the
	// reason has to be caught as it is logged.
	log := &firstErrors{fatal: make(chan struct{})}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if err := waitReady(s, log); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("start a NATS server on %s with its store in %s: %w", listenAddr(opts), o.StoreDir, err)
	}
	return &Server{s: s}, nil
}

func waitReady(s *server.Server, log *firstErrors) error {
	// The server's own wait looks every 25 ms, which is longer than its start
	// takes, and does not end when the server has given up.
	const step = 2 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for start := time.Now(); time.Since(start) < startTimeout; {
		if s.ReadyForConnections(step / 2) {
			if !s.JetStreamEnabled() {
				return fmt.Errorf("JetStream is not enabled: %w", log.reason())
			}
			return nil
		}
		select {
		case <-log.fatal:
			return log.reason()
		case <-tick.C:
		}
	}
	return fmt.Errorf("not ready after %v: %w", startTimeout, log.reason())
}

func parse(o Options) (*server.Options, error) {
	if o.StoreDir == "" {
		return nil, errors.New("StoreDir is empty: name a folder for JetStream's files")
	}
	if o.Port > 65535 {
		return nil, fmt.Errorf("Port must be at most 65535, got %d: use 0 for a free one", o.Port)
	}
	opts := &server.Options{}
	if o.Config != "" {
		parsed, err := parseText(o.Config)
		if err != nil {
			return nil, err
		}
		opts = parsed
	}
	opts.JetStream = true
	opts.StoreDir = o.StoreDir
	opts.Host = loopback.Host
	opts.Port = o.Port
	if o.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	opts.DontListen = o.Port < 0
	opts.NoSigs = true
	opts.NoLog = true
	opts.DisableJetStreamBanner = true
	return opts, nil
}

// parseText takes the way round a file because that is the only door the
// server has for a configuration that also sets users and TLS.
func parseText(text string) (*server.Options, error) {
	dir, err := os.MkdirTemp("", "nats-config-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return server.ProcessConfigFile(file)
}

func listenAddr(o *server.Options) string {
	if o.DontListen {
		return "no port"
	}
	if o.Port == server.RANDOM_PORT {
		return loopback.Host + " (a free port)"
	}
	return net.JoinHostPort(o.Host, strconv.Itoa(o.Port))
}

// URL returns the address for clients, nats://127.0.0.1:port, or tls:// if the
// configuration asks for TLS. It is empty if the server does not listen.
func (s *Server) URL() string {
	if s.s.Addr() == nil {
		return ""
	}
	return s.s.ClientURL()
}

// Port returns the port listened on, or 0 if the server does not listen.
func (s *Server) Port() int {
	if a, ok := s.s.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// InProcessConn makes the server an argument for nats.InProcessServer: a
// connection that needs no port.
func (s *Server) InProcessConn() (net.Conn, error) { return s.s.InProcessConn() }

// Stop shuts the server down in an orderly way: connections are closed, stored
// messages written. It returns when all is done, and may be called again.
func (s *Server) Stop() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}

// LameDuck starts what an operator does before maintenance: the server tells
// its clients, closes their connections one by one and then stops. It returns
// when the server has stopped. The configuration's lame_duck_duration (default
// 2 min) and lame_duck_grace_period (default 10 s) set the pace. A server that
// does not listen ignores it.
func (s *Server) LameDuck() { s.s.LameDuckShutdown() }

// Version is the version of the server, such as "2.15.3".
const Version = server.VERSION
