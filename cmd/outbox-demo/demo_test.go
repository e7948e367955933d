package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

// programs is where TestMain removes what build makes.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "outbox-demo-test-")
	if err != nil {
		panic(err)
	}
	programs = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// build makes the real dispatcher, once.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(programs, "dispatcher")
	out, err := exec.Command("go", "build", "-o", binary, "../dispatcher").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return binary, nil
})

func dispatcherProgram(t *testing.T) string {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatalf("build the dispatcher: %v", err)
	}
	return binary
}

// screen is what the demo has written so far.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // has a token after each write
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// find waits until the pattern is on the screen, and returns its first group.
func (s *screen) find(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(2 * time.Minute)
	for {
		if m := re.FindStringSubmatch(s.String()); m != nil {
			return m[1]
		}
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("%s is not on the screen:\n%s", pattern, s)
		}
	}
}

func TestEachTaskArrivesExactlyOnce(t *testing.T) {
	out := newScreen()
	err := run(t.Context(), []string{"--dispatcher", dispatcherProgram(t), "--rate", "100", "--count", "150"}, out, out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"150 inserted, 150 delivered, 0 lost, 0 duplicated, 0 foreign (inserted by somebody else)\n",
		"from commit to delivery: p50 ",
		heading,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "level=") {
		t.Errorf("the dispatcher has something to complain about:\n%s", out)
	}
}

// A person joins in with the addresses on the screen, and stops it with Ctrl-C.
func TestJoinInAndInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	out, ended := newScreen(), make(chan error, 1)
	go func() { ended <- run(ctx, []string{"--dispatcher", dispatcherProgram(t), "--rate", "50"}, out, out) }()
	nc, err := nats.Connect(out.find(t, `nats --server (\S+) sub 'outbox.hello'`))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("outbox.hello")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	insertOwn(t, out.find(t, `psql '([^']+)' -c "INSERT`))
	if _, err := sub.NextMsg(time.Minute); err != nil {
		t.Errorf("our own task did not arrive: %v", err)
	}
	askDispatcher(t, out)
	out.find(t, `\n +1 +\d+( +\d+)`) // the first line of figures
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if !regexp.MustCompile(`\n(\d+) inserted, \d+ delivered, 0 lost, 0 duplicated, 1 foreign \(inserted by somebody else\)\n`).MatchString(out.String()) {
		t.Errorf("the outcome is missing in:\n%s", out)
	}
}

// askDispatcher uses the other lines of the greeting.
func askDispatcher(t *testing.T, out *screen) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, out.find(t, `dispatcher +(http://\S+)/metrics`)+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the dispatcher is not ready: %s", resp.Status)
	}
	status, err := exec.CommandContext(t.Context(), "sh", "-c", out.find(t, `\n +(\S+ status --database-url .*)\n`)).CombinedOutput()
	if err != nil || !strings.Contains(string(status), "1 listening") {
		t.Errorf("status: %v\n%s", err, status)
	}
}

// Ctrl-C while it starts is no error, unless tasks were asked for.
func TestInterruptWhileItStarts(t *testing.T) {
	program := dispatcherProgram(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	out := newScreen()
	if err := run(ctx, []string{"--dispatcher", program}, out, out); err != nil || out.String() != "stopped\n" {
		t.Errorf("error %v, output %q", err, out)
	}
	err := run(ctx, []string{"--dispatcher", program, "--count", "5"}, out, out)
	if err == nil || err.Error() != "interrupted before the first of 5 tasks" {
		t.Errorf("with a count: %v", err)
	}
}

func insertOwn(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox (kind, payload) VALUES ('hello', '{}')`); err != nil {
		t.Fatal(err)
	}
}

// With a count, a message too many is a failure, whoever sent it.
func TestCountFindsDuplicatesAndStrangers(t *testing.T) {
	out, ended := newScreen(), make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"--dispatcher", dispatcherProgram(t), "--rate", "10", "--count", "30"}, out, out)
	}()
	nc, err := nats.Connect(out.find(t, `nats --server (\S+) sub 'outbox.hello'`))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("outbox.email")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := sub.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	again := nats.NewMsg(msg.Subject)
	again.Header.Set("Outbox-Task-Id", msg.Header.Get("Outbox-Task-Id"))
	if _, err := nc.RequestMsg(again, time.Minute); err != nil {
		t.Fatal(err)
	}
	insertOwn(t, out.find(t, `psql '([^']+)' -c "INSERT`))
	err = <-ended
	if err == nil {
		t.Fatalf("it found nothing wrong:\n%s", out)
	}
	for _, want := range []string{"1 messages arrived again", "1 messages arrived that the demo did not insert"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if want := "30 inserted, 30 delivered, 0 lost, 1 duplicated, 1 foreign (inserted by somebody else)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is missing in:\n%s", want, out)
	}
}

func TestDispatcherThatEndsByItself(t *testing.T) {
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	out := newScreen()
	err = run(t.Context(), []string{"--dispatcher", program}, out, out)
	if err == nil || !strings.Contains(err.Error(), "the dispatcher ended by itself") {
		t.Errorf("error %v, want that the dispatcher ended", err)
	}
}

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"rate too low":      {[]string{"--rate", "0"}, "--rate must be 0.1 to 5000 tasks per second, got 0"},
		"rate not a number": {[]string{"--rate", "NaN"}, "--rate must be"},
		"count":             {[]string{"--count=-1"}, "--count must be 0 (until Ctrl-C) to 10000000 tasks, got -1"},
		"no program":        {[]string{"--dispatcher", "no/such/file"}, `build the program with "make build"`},
		"flag":              {[]string{"--rat", "1"}, `did you mean "--rate"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), append([]string{"--dispatcher", os.Args[0]}, c.args...), newScreen(), newScreen())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	out := newScreen()
	if err := run(t.Context(), []string{"--help"}, out, out); err != nil || strings.Count(out.String(), "$DEMO_RATE") != 1 {
		t.Errorf("help: error %v, output:\n%s", err, out)
	}
}
