package dispatcher

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgbouncer is a real PgBouncer in front of a test's database.
type pgbouncer struct {
	dsn string
	// prepares is set if it keeps track of prepared statements.
	prepares bool
}

// startPgBouncer starts a PgBouncer in transaction mode, until the end of the
// test. This is the one thing that a test may do without: most systems do not
// have it, and some have no package of it.
func startPgBouncer(t *testing.T, dsn string) pgbouncer {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip(`PgBouncer is not installed: run "make setup", or install the package pgbouncer`)
		}
	}
	version, err := exec.CommandContext(t.Context(), program, "--version").Output() // #nosec G204 -- found above
	if err != nil {
		t.Fatalf("%s --version: %v", program, err)
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	prepares := tracksPrepared(t, string(version))

	// It runs as the user of the server, beside the server's folder: the server's
	// socket is for that user alone, and PgBouncer refuses root too.
	dir, err := os.MkdirTemp(filepath.Dir(cfg.Host), "outbox-pgbouncer-*") //nolint:usetesting // that of the test is for our user alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ini := fmt.Sprintf("[databases]\n%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s\n"+
		"[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = %[5]s\n"+
		"auth_type = any\npool_mode = transaction\ndefault_pool_size = 20\n",
		cfg.Database, cfg.Host, cfg.Port, cfg.User, dir)
	if prepares {
		ini += "max_prepared_statements = 100\n"
	}
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, file) // #nosec G204 -- found above
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = asOwnerOf(t, cfg.Host, dir, file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // killed at the end of the test
	}()
	t.Cleanup(func() { <-exited })

	u := url.URL{Scheme: "postgres", Path: "/" + cfg.Database, RawQuery: url.Values{
		"host": {dir}, "port": {"6432"}, "user": {cfg.User},
	}.Encode()}
	eventually(t, "PgBouncer answers", func() error {
		select {
		case <-exited:
			t.Fatalf("PgBouncer ended: %s", log.String())
		default:
		}
		conn, err := pgx.Connect(t.Context(), u.String())
		if err != nil {
			return err
		}
		return conn.Close(t.Context())
	})
	return pgbouncer{dsn: u.String(), prepares: prepares}
}

// tracksPrepared reports whether that version has max_prepared_statements: 1.21.
func tracksPrepared(t *testing.T, version string) bool {
	t.Helper()
	m := regexp.MustCompile(`(\d+)\.(\d+)`).FindStringSubmatch(version)
	if m == nil {
		t.Fatalf("no version in %q", version)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major > 1 || minor >= 21
}

// asOwnerOf makes a process run as the user who owns the folder, and gives that
// user the files, if we are root.
func asOwnerOf(t *testing.T, folder string, files ...string) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%s has no owner", folder)
	}
	for _, file := range files {
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
}

// Through a pooler that hands a connection to another client after each
// transaction, LISTEN succeeds and nothing ever arrives. The dispatcher notices,
// says what to do, and goes on by polling; with a direct address for listening
// all is well. Claiming works through the pooler either way.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"through it", "directly"} {
		for _, mode := range []string{"exec", "cache_statement"} {
			t.Run(listen+" "+mode, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				b := startPgBouncer(t, r.dsn)
				if mode == "cache_statement" && !b.prepares {
					mode = "exec" // what the operator is told to set for this version
				}
				d := r.start(func(c *Config) {
					c.Pool = pooled(t, b.dsn+"&pool_max_conns=10&default_query_exec_mode="+mode)
					c.SweepInterval = 0 // the default
					if listen == "directly" {
						c.Listen = parsed(t, r.dsn)
					}
				})
				if listen == "directly" {
					eventually(t, "wakes arrive", wakeIs(d, true, ""))
				} else {
					eventually(t, "their loss is noticed", wakeIs(d, false, "give a direct address for listening"))
				}
				// Enough in a row to mask the notifications, where they arrive.
				for range 300 {
					r.insert("single", `{}`)
				}
				r.insertMany(3000)
				r.awaitSettled()
				if ids := r.storedIDs(); len(ids) != 3300 {
					t.Errorf("%d tasks are stored, want 3300", len(ids))
				}
				if h := d.Health(); !h.Ready() {
					t.Errorf("not ready, though tasks flow: %+v", h)
				}
				if n := see(r.observer, func(w *watcher) int { return w.released }); n > 0 {
					t.Errorf("%d tasks were released", n)
				}
			})
		}
	}
}

func parsed(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func pooled(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
