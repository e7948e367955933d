// Package pgserver runs a private PostgreSQL server in a temporary folder, for
// tests, the demo and the benchmarks. It needs the server binaries of the
// system and no privileges; as root it runs the server as another user.
package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "postgres"
	// socketPort only names the socket file; each server has its own folder.
	socketPort = 5432
	startTries = 5
	// patience with a server that has to write its checkpoint on a slow disk.
	patience = time.Minute
)

// Options of a server. The zero value is a server for tests: reachable through
// a Unix socket only, and free to lose data when the machine crashes.
type Options struct {
	// Fsync makes commits wait for the disk. Default off. Killing the server
	// loses no committed data either way; a crash of the machine does.
	Fsync bool
	// TCP makes the server listen on a free port of 127.0.0.1 too, with a
	// random password; see [Server.TCPDSN].
	TCP bool
	// Settings are added to postgresql.conf and win over the server's
	// defaults and ours (wal_level=logical, max_connections=300 ...).
	Settings map[string]string
}

// Server is a private PostgreSQL server. Its methods may be called from several
// goroutines at once.
type Server struct {
	options  Options
	bindir   string
	account  account
	folder   *folder
	password string
	port     int

	mu    sync.Mutex
	child *child // nil when not running
}

// Start makes a new cluster and starts a server on it. It returns once the
// server accepts connections, which takes about a second. The caller must call
// [Server.Close]; if the process dies first, the server ends with it and the
// next Start removes its folder. Cancelling ctx later does not stop the server.
func Start(ctx context.Context, options Options) (*Server, error) {
	bindir, err := FindBindir() //nolint:contextcheck // it asks a local program, with a limit of its own
	if err != nil {
		return nil, err
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(as)
	if err != nil {
		return nil, err
	}
	s := &Server{options: options, bindir: bindir, account: as, folder: dir, password: rand.Text(), port: socketPort}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	return s, nil
}

// create makes the cluster and starts it for the first time. Between choosing a
// free port and binding it another process may take it, hence several tries.
func (s *Server) create(ctx context.Context) error {
	if err := s.initdb(ctx); err != nil {
		return err
	}
	var err error
	for range startTries {
		if s.options.TCP {
			if s.port, err = freePort(ctx); err != nil {
				return err
			}
		}
		if err = s.writeConfig(); err != nil {
			return err
		}
		if err = s.Start(ctx); err == nil || !s.options.TCP || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Start starts the server again after [Server.Stop] or [Server.Kill], with the
// same data, socket and port. It returns once the server accepts connections,
// and does nothing if it is running.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running() {
		return nil
	}
	c, err := startChild(s.command(context.WithoutCancel(ctx), "postgres", "-D", s.data()), s.LogFile())
	if err != nil {
		return err
	}
	s.child = c
	if err := s.await(ctx, c); err != nil {
		return errors.Join(err, s.stop(syscall.SIGQUIT))
	}
	return nil
}

// Stop ends the server as "pg_ctl stop -m fast" does: open transactions are
// rolled back, everything is written. It does nothing if the server is not
// running.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(syscall.SIGINT)
}

// Kill ends the server as a crash does ("pg_ctl stop -m immediate"): nothing is
// written, commits with synchronous_commit=off may be lost, and the next start
// recovers from the log. It does nothing if the server is not running.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(syscall.SIGQUIT)
}

// Restart stops the server if it is running, and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	return errors.Join(s.Stop(), s.Start(ctx))
}

// Close ends the server at once and removes its folder. The Server is of no
// use afterwards.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.stop(syscall.SIGQUIT), s.folder.remove())
}

// DSN returns the address of the named database through the Unix socket, as a
// superuser: a URL that pgx and psql understand.
func (s *Server) DSN(database string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: url.Values{
		"host": {s.folder.path}, "port": {strconv.Itoa(s.port)}, "user": {superuser},
	}.Encode()}
	return u.String()
}

// TCPDSN is [Server.DSN] through TCP, with the password. It is empty without
// [Options].TCP.
func (s *Server) TCPDSN(database string) string {
	if !s.options.TCP {
		return ""
	}
	u := url.URL{
		Scheme: "postgres", Path: "/" + database, User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Bindir returns the folder with initdb and postgres.
func (s *Server) Bindir() string { return s.bindir }

// Program returns the path of one of PostgreSQL's programs, such as psql or
// pg_dump: beside the server's if it is there, so that versions match, else its
// bare name, for PATH.
func (s *Server) Program(name string) string {
	path := filepath.Join(s.bindir, name)
	if _, err := os.Stat(path); err != nil {
		return name
	}
	return path
}

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.folder.path, "log") }

// PID returns the process id of the postmaster, or 0 when the server is not
// running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return 0
	}
	return s.child.process.Pid
}

func (s *Server) running() bool {
	if s.child == nil {
		return false
	}
	select {
	case <-s.child.exited:
		return false
	default:
		return true
	}
}

func (s *Server) stop(sig syscall.Signal) error {
	if s.child == nil {
		return nil
	}
	c := s.child
	s.child = nil
	return c.stop(sig, patience)
}

// await connects until the server answers.
func (s *Server) await(ctx context.Context, c *child) error {
	const pause = 5 * time.Millisecond
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.exited:
			return fmt.Errorf("postgres ended at start: %s", logTail(s.LogFile()))
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL to accept connections: %w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.folder.path, "data") }

// command returns a command of the server's user in the server's folder,
// without the PG* variables of ours, which are meant for clients.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bindir, name), args...) // #nosec G204 -- one of two fixed names
	cmd.Dir = s.folder.path
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account.credential}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
