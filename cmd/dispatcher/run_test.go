package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ask(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// readyz asks the program for its readiness; a program that does not answer
// is not ready.
func readyz(t *testing.T, addr string) (code int, r readiness) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, r
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, r
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("readyz answers %s", body)
	}
	return resp.StatusCode, r
}

func awaitReady(t *testing.T, p *process) {
	t.Helper()
	addr := p.httpAddr(t)
	eventually(t, "ready", func() bool {
		select {
		case <-p.exited:
			t.Fatal("the program ended")
		default:
		}
		code, _ := readyz(t, addr)
		return code == http.StatusOK
	})
}

// runEnv is the environment of a program that finds both servers.
func runEnv(dsn string, s *natstest.Server, more ...string) []string {
	return append([]string{
		"DATABASE_URL=" + dsn, "NATS_URL=" + s.URL(), "OUTBOX_HTTP=127.0.0.1:0", "OUTBOX_CREATE_STREAM=true",
	}, more...)
}

// insert is what a producer in any language does.
func insert(t *testing.T, dsn, kind string) {
	t.Helper()
	pgtest.Exec(t, pgtest.Connect(t, dsn), `insert into outbox (kind, payload) values ($1, '{"to": "a@example.com"}')`, kind)
}

// awaitMessage returns the first message of the subject.
func awaitMessage(t *testing.T, s *natstest.Server, subject string) jetstream.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	js := s.JetStream(t)
	stream, err := js.StreamNameBySubject(ctx, subject)
	if err != nil {
		t.Fatalf("find the stream of %s: %v", subject, err)
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := consumer.Next(jetstream.FetchMaxWait(patience))
	if err != nil {
		t.Fatalf("no message on %s: %v", subject, err)
	}
	return m
}

func TestRunDispatches(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	p := start(t, runEnv(dsn, s, "OUTBOX_BACTH=5"), "run")
	awaitReady(t, p)
	insert(t, dsn, "email")
	m := awaitMessage(t, s, "outbox.email")
	if string(m.Data()) != `{"to": "a@example.com"}` || m.Headers().Get("Outbox-Kind") != "email" {
		t.Errorf("%s %v", m.Data(), m.Headers())
	}
	var out strings.Builder
	if code := run(t.Context(), []string{"healthcheck", "--http", p.httpAddr(t)}, nil, &out, &out); code != 0 {
		t.Errorf("healthcheck: %d %s", code, out.String())
	}
	p.stop(t)
	for _, want := range []string{"stopped", `msg="created the stream" stream=OUTBOX subjects=outbox.>`, "nearest=OUTBOX_BATCH"} {
		if !strings.Contains(p.text(), want) {
			t.Errorf("no word of %q", want)
		}
	}
}

func TestInterruptIsGracefulToo(t *testing.T) {
	t.Parallel()
	p := start(t, runEnv(pgtest.NewDB(t), natstest.Listening(t)), "run")
	awaitReady(t, p)
	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A program that drains, because the broker holds its answer back, still
// answers for its health, and ends at once at a second signal.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	p := start(t, runEnv(dsn, s), "run")
	awaitReady(t, p)
	addr := p.httpAddr(t)
	s.Freeze(t)
	insert(t, dsn, "email")
	locked := pgtest.Connect(t, dsn)
	eventually(t, "the task is claimed", func() bool {
		var free int
		if err := locked.QueryRow(t.Context(), `select count(*) from (select from outbox for update skip locked) x`).Scan(&free); err != nil {
			t.Fatal(err)
		}
		return free == 0
	})
	p.signal(t, syscall.SIGTERM)
	p.await(t, "stopping")
	if code, r := readyz(t, addr); code != http.StatusServiceUnavailable || !r.Stopping {
		t.Errorf("while it drains: status %d, %+v", code, r)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != exitKilled {
		t.Errorf("after the second signal the exit code is %d: it finished instead of ending", code)
	}
	s.Thaw(t)
}

// Without a signal the same program finishes: it gives the task back.
func TestDrainGivesTheTaskBack(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	p := start(t, runEnv(dsn, s, "OUTBOX_PUBLISH_TIMEOUT=1s"), "run")
	awaitReady(t, p)
	s.Freeze(t)
	insert(t, dsn, "email")
	p.await(t, "the broker is unavailable")
	p.stop(t)
	var attempts int
	var sent bool
	if err := pgtest.Connect(t, dsn).QueryRow(t.Context(), "select attempts, sent_at is not null from outbox").Scan(&attempts, &sent); err != nil {
		t.Fatal(err)
	}
	if attempts != 0 || sent {
		t.Errorf("attempts %d, sent %t", attempts, sent)
	}
	s.Thaw(t)
}

func TestNATSAppearsLater(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	s.Stop(t)
	p := start(t, runEnv(dsn, s), "run")
	p.await(t, "cannot connect to NATS")
	p.await(t, "dispatching") // the database is there
	addr := p.httpAddr(t)
	code, r := readyz(t, addr)
	if code != http.StatusServiceUnavailable || r.Ready {
		t.Errorf("ready without a broker: %d %+v", code, r)
	}
	s.Restart(t)
	p.await(t, "connected to NATS")
	awaitReady(t, p)
	insert(t, dsn, "email")
	awaitMessage(t, s, "outbox.email")
	p.stop(t)
	if n := strings.Count(p.text(), "cannot connect to NATS"); n > 2 {
		t.Errorf("the same outage was logged %d times", n)
	}
}

func TestReadyzFollowsNATS(t *testing.T) {
	t.Parallel()
	dsn, s := pgtest.NewDB(t), natstest.Listening(t)
	p := start(t, runEnv(dsn, s), "run")
	awaitReady(t, p)
	addr := p.httpAddr(t)
	s.Stop(t)
	eventually(t, "not ready without the broker", func() bool {
		code, r := readyz(t, addr)
		return code == http.StatusServiceUnavailable && r.Circuit.Open && r.Circuit.Cause != ""
	})
	s.Restart(t)
	awaitReady(t, p)
	p.stop(t)
}

func TestDatabaseAppearsLater(t *testing.T) {
	t.Parallel()
	pg := pgtest.OwnServer(t, pgserver.Options{})
	dsn := pg.DSN("postgres")
	pgtest.Migrate(t, dsn, "public")
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	s := natstest.Listening(t)
	p := start(t, runEnv(dsn, s), "run")
	p.await(t, "the database cannot be used")
	addr := p.httpAddr(t)
	if code, r := readyz(t, addr); code != http.StatusServiceUnavailable || r.Database.OK {
		t.Errorf("ready without a database: %d %+v", code, r)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, p)
	insert(t, dsn, "email")
	awaitMessage(t, s, "outbox.email")
	p.stop(t)
}

// A daemon that has stopped ends, also when the database has gone silent: pgx alone would
// wait 15 s for a connection whose statement was given up.
func TestSilentDatabaseDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.NewDB(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(fmt.Sprintf("%s/.s.PGSQL.%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(proxy.Port()) // #nosec G115 -- a port
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Stall()
	asking, cancel := context.WithCancel(t.Context())
	go cancel()
	if err := pool.Ping(asking); err == nil {
		t.Fatal("the database is not silent")
	}
	begun := time.Now()
	closePool(pool)
	if took := time.Since(begun); took > 10*poolGrace {
		t.Errorf("closing the pool took %v", took)
	}
	proxy.Cut()
}
