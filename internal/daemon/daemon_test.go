package daemon_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/internal/daemon"
)

// The program of these tests is this test binary: what is tested is the care
// for a child, whatever the child does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "child-") {
		os.Exit(child(os.Args[1]))
	}
	goleak.VerifyTestMain(m)
}

func child(what string) int {
	switch what {
	case "child-environment":
		for _, v := range os.Environ() {
			fmt.Fprintln(os.Stderr, v)
		}
		return 0
	case "child-fails":
		fmt.Fprintln(os.Stderr, strings.Repeat("much before\n", 1000)+"the last words")
		return 7
	case "child-waits":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "ready")
		<-signals
		return 0
	case "child-parent": // starts a child of its own and ends without a word to it
		// Unlike its original the copy is inherited: the child holds standard
		// output open for as long as it lives.
		if _, err := syscall.Dup(1); err != nil {
			panic(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		d, err := daemon.Start(daemon.Options{Binary: os.Args[0], Output: w}, "child-waits")
		if err != nil {
			panic(err)
		}
		_, _ = bufio.NewReader(r).ReadString('\n')
		fmt.Println(d.PID())
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return 99
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestEnvironment(t *testing.T) {
	for _, v := range []string{"PGHOST", "OUTBOX_BATCH", "NATS_CREDS", "DATABASE_URL"} {
		t.Setenv(v, "not for the child")
	}
	t.Setenv("OTHER", "kept")
	var out bytes.Buffer
	err := daemon.Run(daemon.Options{Binary: self(t), DSN: "postgres://a", NATSURL: "nats://b", Output: &out}, "child-environment")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DATABASE_URL=postgres://a\n", "NATS_URL=nats://b\n", "OTHER=kept\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the environment lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "not for the child") {
		t.Errorf("a setting of this process reached the child:\n%s", &out)
	}
}

func TestFailureTellsTheLastWords(t *testing.T) {
	err := daemon.Run(daemon.Options{Binary: self(t)}, "child-fails")
	if err == nil || !strings.HasSuffix(err.Error(), "the last words") || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("error %.200v does not tell how it ended and what it said last", err)
	}
	if len(err.Error()) > 5000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	if _, err := daemon.Start(daemon.Options{Binary: "/no/such/program"}); err == nil {
		t.Error("started a program that does not exist")
	}
}

func TestStopAndKill(t *testing.T) {
	for name, end := range map[string]func(*daemon.Daemon) error{
		"stop": (*daemon.Daemon).Stop,
		"kill": func(d *daemon.Daemon) error {
			d.Kill()
			if err := d.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
				return fmt.Errorf("a killed child ended with %w", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			d, err := daemon.Start(daemon.Options{Binary: self(t), Output: w}, "child-waits")
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready\n" {
				t.Fatalf("the child says %q, error %v", line, err)
			}
			if err := end(d); err != nil {
				t.Error(err)
			}
			<-d.Done()
			if syscall.Kill(d.PID(), 0) == nil {
				t.Errorf("process %d still exists", d.PID())
			}
			_ = d.Stop() // again, and it returns
		})
	}
}
