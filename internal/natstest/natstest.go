// Package natstest gives a test a real NATS server with JetStream of its own:
// inside the test process for most tests ([Start]), or as a process that can be
// killed, frozen and started again on the same port ([Listening]).
package natstest

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
	"github.com/outbox-dispatcher/outbox/internal/natsserver"
)

// Server is a NATS server that belongs to one test and ends with it. Connect,
// JetStream, Stream and URL may be called from several goroutines; the methods
// that stop and start the server by one at a time.
type Server struct {
	opts   natsserver.Options
	client []nats.Option
	port   *loopback.Port // nil: in process

	mu sync.Mutex
	in *natsserver.Server // nil while stopped, and with a process of its own
	ps *process           // nil while stopped, and in process
}

// Option changes a server before it starts.
type Option func(*Server)

// WithConfig gives the server text in its own configuration language: users,
// permissions, TLS, limits, lame duck timing.
func WithConfig(text string) Option {
	return func(s *Server) { s.opts.Config = text }
}

// WithClient makes Connect, and so JetStream and Stream, use these options
// before their own: the credentials that a server made with [WithConfig] asks
// for.
func WithClient(opts ...nats.Option) Option {
	return func(s *Server) { s.client = append(s.client, opts...) }
}

// Start runs a server inside the test process. It listens on no port, and is up
// in a few milliseconds.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{}
	s.opts.Port = -1
	s.run(t, opts)
	return s
}

// Listening runs a server as a process of its own that listens on a port of
// 127.0.0.1 for as long as the test lasts. Besides what [Start] offers, the
// server can be killed and frozen.
func Listening(t testing.TB, opts ...Option) *Server {
	t.Helper()
	port, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	s := &Server{port: port}
	s.opts.Port = port.Number()
	s.run(t, opts)
	return s
}

func (s *Server) run(t testing.TB, opts []Option) {
	t.Helper()
	s.opts.StoreDir = t.TempDir()
	for _, o := range opts {
		o(s)
	}
	t.Cleanup(s.end)
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.port == nil {
		s.in, err = natsserver.Start(s.opts)
	} else {
		s.ps, err = startProcess(s.opts)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// end is Stop for a server in any state.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != nil {
		s.in.Stop()
	}
	if s.ps != nil {
		s.ps.kill()
	}
	s.in, s.ps = nil, nil
}

// Addr returns "127.0.0.1:port" of a [Listening] server, for a proxy in front
// of it, and "" otherwise. It stays the same when the server restarts.
func (s *Server) Addr() string {
	if s.port == nil {
		return ""
	}
	return s.port.Addr()
}

// URL returns "nats://127.0.0.1:port" of a [Listening] server and "" otherwise.
// A server with TLS takes it as well.
func (s *Server) URL() string {
	if s.port == nil {
		return ""
	}
	return "nats://" + s.port.Addr()
}

// InProcessConn makes a [Start]ed server an argument for nats.InProcessServer.
// A connection made with it finds the server again after Restart.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == nil {
		return nil, errors.New("connect to the in-process NATS server: it is not running")
	}
	return s.in.InProcessConn()
}

// Connect opens a connection that is closed at the end of the test.
func (s *Server) Connect(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	all := []nats.Option{nats.Name(t.Name())}
	if s.port == nil {
		all = append(all, nats.InProcessServer(s))
	}
	all = append(append(all, s.client...), opts...)
	nc, err := nats.Connect(s.URL(), all...)
	if err != nil {
		t.Fatalf("connect to the NATS server: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// JetStream opens a connection and returns its JetStream.
func (s *Server) JetStream(t testing.TB, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Connect(t, opts...))
	if err != nil {
		t.Fatalf("use JetStream: %v", err)
	}
	return js
}

// Stream creates a stream on a connection of its own.
func (s *Server) Stream(t testing.TB, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	st, err := s.JetStream(t).CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatalf("create stream %s: %v", cfg.Name, err)
	}
	return st
}

// Stop ends the server in an orderly way. Its store stays.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.in != nil:
		s.in.Stop()
	case s.ps != nil:
		if err := s.ps.stop(); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatal("Stop: the NATS server is not running")
	}
	s.in, s.ps = nil, nil
}

// Restart starts the server again, with the same port and store, after Stop,
// Kill or LameDuck; a running server is stopped first.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	running := s.in != nil || s.ps != nil
	s.mu.Unlock()
	if running {
		s.Stop(t)
	}
	s.start(t)
}

// Kill ends the process of a [Listening] server as kill -9 does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.process(t, "Kill").kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ps = nil
}

// Freeze halts the process of a [Listening] server: its connections stay open
// and nothing answers. Thaw lets it go on.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	if err := s.process(t, "Freeze").freeze(); err != nil {
		t.Fatal(err)
	}
}

// Thaw ends Freeze.
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	if err := s.process(t, "Thaw").thaw(); err != nil {
		t.Fatal(err)
	}
}

// LameDuck puts a [Listening] server into lame duck mode and returns once it
// has ended. Set lame_duck_duration and lame_duck_grace_period with
// [WithConfig], or it takes more than two minutes.
func (s *Server) LameDuck(t testing.TB) {
	t.Helper()
	if err := s.process(t, "LameDuck").lameDuck(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ps = nil
}

func (s *Server) process(t testing.TB, action string) *process {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ps == nil {
		t.Fatalf("%s: needs a NATS server that Listening started and that is running", action)
	}
	return s.ps
}
