package pgserver_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

func start(t *testing.T, o pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func query(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var out string
	if err := conn.QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{Fsync: true, Settings: map[string]string{"work_mem": "7MB", "cluster_name": `it's a \ test`}})
	conn := connect(t, s.DSN("postgres"))
	for name, want := range map[string]string{
		"fsync": "on", "wal_level": "logical", "work_mem": "7MB", "cluster_name": `it's a \ test`,
		"listen_addresses": "", "server_encoding": "UTF8", "max_connections": "300",
	} {
		if got := query(t, conn, "show "+name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := query(t, conn, "select datcollate::text from pg_database where datname = 'postgres'"); got != "C" {
		t.Errorf("collation %q, want C", got)
	}
	if dsn := s.TCPDSN("postgres"); dsn != "" {
		t.Errorf("TCPDSN without TCP = %q", dsn)
	}
}

func TestDataAndAddressSurviveStopAndKill(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{TCP: true})
	dsn := s.TCPDSN("postgres")
	if _, err := connect(t, dsn).Exec(t.Context(), "create table kept (n int)"); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func() error{"stop": s.Stop, "kill": s.Kill} {
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
			_ = conn.Close(t.Context())
			t.Fatalf("the server still answers after %s", name)
		}
		if pid := s.PID(); pid != 0 {
			t.Errorf("PID after %s = %d, want 0", name, pid)
		}
		if err := end(); err != nil {
			t.Errorf("%s of a stopped server: %v", name, err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if got := query(t, connect(t, dsn), "select count(*)::text from kept"); got != "0" {
			t.Errorf("after %s: %s rows", name, got)
		}
	}
	before := s.PID()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.PID() == before || s.PID() == 0 {
		t.Errorf("PID after Restart = %d, before %d", s.PID(), before)
	}
}

func TestKillLosesAsynchronousCommits(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{Settings: map[string]string{"wal_writer_delay": "10s", "autovacuum": "off"}})
	conn := connect(t, s.DSN("postgres"))
	for _, sql := range []string{"create table t (n int)", "checkpoint", "set synchronous_commit = off", "insert into t values (1)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, connect(t, s.DSN("postgres")), "select count(*)::text from t"); got != "0" {
		t.Errorf("%s rows survived a crash, want none: Kill wrote what was in memory", got)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{TCP: true})
	conn := connect(t, s.DSN("postgres"))
	if got := query(t, conn, "show fsync"); got != "off" {
		t.Errorf("fsync is %q without Options.Fsync", got)
	}
	if _, err := conn.Exec(t.Context(), `create database "My Base"`); err != nil {
		t.Fatal(err)
	}
	for _, dsn := range []string{s.DSN("My Base"), s.TCPDSN("My Base")} {
		if got := query(t, connect(t, dsn), "select current_database()::text"); got != "My Base" {
			t.Errorf("pgx is in database %q", got)
		}
		out, err := exec.CommandContext(t.Context(), s.Program("psql"), "-Atc", "select current_database()", dsn).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "My Base" {
			t.Errorf("psql: %v: %s", err, out)
		}
	}
	// Every user of the machine can reach the port.
	cfg, err := pgx.ParseConfig(s.TCPDSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password was let in")
	}
}

func TestStartFailureShowsTheLog(t *testing.T) {
	t.Parallel()
	_, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{"shared_buffers": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Fatalf("error = %v, want the server's own message", err)
	}
}

func TestStartRespectsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pgserver.Start(ctx, pgserver.Options{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error = %v, want canceled", err)
	}
}

func TestFindBindir(t *testing.T) {
	want, err := pgserver.FindBindir()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(pgserver.BindirEnv, want)
	if got, err := pgserver.FindBindir(); err != nil || got != want {
		t.Errorf("FindBindir = %q, %v, want %q", got, err, want)
	}
	t.Setenv(pgserver.BindirEnv, t.TempDir())
	_, err = pgserver.Start(t.Context(), pgserver.Options{})
	if !errors.Is(err, pgserver.ErrNoBinaries) || !strings.Contains(err.Error(), pgserver.BindirEnv) {
		t.Errorf("error = %v, want ErrNoBinaries naming %s", err, pgserver.BindirEnv)
	}
}

// childEnv makes this test binary, started again, run a server and wait.
const childEnv = "OUTBOX_PGSERVER_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	s, err := pgserver.Start(context.Background(), pgserver.Options{})
	if err != nil {
		_, _ = os.Stdout.WriteString(err.Error())
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(s.LogFile() + "\n" + strconv.Itoa(s.PID()) + "\n")
	select {}
}

func TestServerDiesWithItsOwnerAndNextStartTidiesUp(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var buf [4096]byte
	var text string
	for strings.Count(text, "\n") < 2 {
		n, err := out.Read(buf[:])
		if err != nil {
			t.Fatalf("the owner ended: %s: %v", text, err)
		}
		text += string(buf[:n])
	}
	lines := strings.Split(text, "\n")
	folder := filepath.Dir(lines[0])
	pid, err := strconv.Atoi(lines[1])
	if err != nil {
		t.Fatal(err)
	}
	start(t, pgserver.Options{})
	if _, err := os.Stat(folder); err != nil {
		t.Fatalf("the folder of a living owner was removed: %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deadline := time.After(30 * time.Second)
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-deadline:
			t.Fatal("the server outlives its owner")
		case <-time.After(5 * time.Millisecond):
		}
	}
	start(t, pgserver.Options{})
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a dead owner is still there: %v", err)
	}
}
