package main

import (
	"bytes"
	"context"
	"errors"
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
		"150 inserted, 150 delivered, 0 lost, 0 duplicated, 0 foreign\n",
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
	nc, err := nats.Connect(out.find(t, `nats --server (\S+) sub 'outbox.>'`))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("outbox.mine")
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
	out.find(t, `\n +1 +\d+( +\d+)`) // the first line of figures
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if !regexp.MustCompile(`\n(\d+) inserted, \d+ delivered, 0 lost, 0 duplicated, 1 foreign\n`).MatchString(out.String()) {
		t.Errorf("the outcome is missing in:\n%s", out)
	}
}

func insertOwn(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox (kind, payload) VALUES ('mine', '{}')`); err != nil {
		t.Fatal(err)
	}
}

// With a count, a message too many is a failure, whoever sent it.
func TestCountFindsDuplicatesAndStrangers(t *testing.T) {
	out, ended := newScreen(), make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"--dispatcher", dispatcherProgram(t), "--rate", "10", "--count", "30"}, out, out)
	}()
	nc, err := nats.Connect(out.find(t, `nats --server (\S+) sub 'outbox.>'`))
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
	if want := "30 inserted, 30 delivered, 0 lost, 1 duplicated, 1 foreign\n"; !strings.Contains(out.String(), want) {
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
	if err := run(t.Context(), []string{"--help"}, out, out); err != nil || !strings.Contains(out.String(), "$DEMO_RATE") {
		t.Errorf("help: error %v, output:\n%s", err, out)
	}
}
