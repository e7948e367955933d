package natsserver_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/internal/natsserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerListensAndKeepsItsStore(t *testing.T) {
	opts := natsserver.Options{StoreDir: t.TempDir()}
	for round := range 2 {
		s, err := natsserver.Start(opts)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), "s", nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(round) + 1; ack.Sequence != want {
			t.Errorf("round %d: sequence %d, want %d", round, ack.Sequence, want)
		}
		if opts.Port == 0 {
			opts.Port = s.Port()
		}
		if s.Port() == 0 || s.Port() != opts.Port {
			t.Errorf("round %d: listens on port %d, want %d", round, s.Port(), opts.Port)
		}
		nc.Close()
		s.Stop()
		s.Stop()
	}
}

func TestServerWithoutPort(t *testing.T) {
	s, err := natsserver.Start(natsserver.Options{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if s.URL() != "" || s.Port() != 0 {
		t.Errorf("a server that does not listen has URL %q and port %d", s.URL(), s.Port())
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestStartSaysWhyItFailed(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opts natsserver.Options
		want string
	}{
		"port taken":        {natsserver.Options{StoreDir: t.TempDir(), Port: taken.Addr().(*net.TCPAddr).Port}, "address already in use"},
		"port out of range": {natsserver.Options{StoreDir: t.TempDir(), Port: 70000}, "at most 65535, got 70000"},
		"no store":          {natsserver.Options{}, "StoreDir is empty"},
		"store is a file":   {natsserver.Options{StoreDir: file, Port: -1}, file},
		"configuration":     {natsserver.Options{StoreDir: t.TempDir(), Port: -1, Config: "no_such_setting: 1"}, "no_such_setting"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := natsserver.Start(c.opts)
			if err == nil {
				s.Stop()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not tell of %q", err, c.want)
			}
		})
	}
}
