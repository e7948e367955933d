package natstest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var events = jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}}

func publish(t *testing.T, js jetstream.JetStream, id string) *jetstream.PubAck {
	t.Helper()
	ack, err := js.Publish(t.Context(), "events.a", []byte(id), jetstream.WithMsgID(id))
	if err != nil {
		t.Fatalf("publish %s: %v", id, err)
	}
	return ack
}

func TestEachTestHasItsOwnServer(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			s.Stream(t, events)
			if ack := publish(t, s.JetStream(t), name); ack.Sequence != 1 {
				t.Errorf("first message got sequence %d, want 1", ack.Sequence)
			}
			if s.URL() != "" || s.Addr() != "" {
				t.Errorf("an in-process server has address %q %q", s.URL(), s.Addr())
			}
		})
	}
}

// A restart is an outage like any other: the store survives it, and a client
// that was connected comes back by itself.
func TestRestart(t *testing.T) {
	type start = func(testing.TB, ...natstest.Option) *natstest.Server
	stop := (*natstest.Server).Stop
	for name, c := range map[string]struct {
		start start
		end   func(*natstest.Server, testing.TB)
	}{
		"in process stopped": {natstest.Start, stop},
		"process stopped":    {natstest.Listening, stop},
		"process killed":     {natstest.Listening, (*natstest.Server).Kill},
		"running":            {natstest.Listening, func(*natstest.Server, testing.TB) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.start(t)
			s.Stream(t, events)
			down, up := make(chan error, 2), make(chan struct{}, 1) // a close disconnects once more
			js := s.JetStream(t, nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond),
				nats.ReconnectJitter(time.Millisecond, time.Millisecond),
				nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { down <- err }),
				nats.ReconnectHandler(func(*nats.Conn) { up <- struct{}{} }))
			publish(t, js, "before")
			url := s.URL()

			c.end(s, t)
			if name != "running" {
				await(t, down, "the client notices")
			}
			s.Restart(t)
			await(t, up, "the client reconnects")
			if s.URL() != url {
				t.Errorf("URL %s became %s", url, s.URL())
			}
			if ack := publish(t, js, "before"); !ack.Duplicate {
				t.Errorf("the message of before the restart was stored again, as %d", ack.Sequence)
			}
			if ack := publish(t, js, "after"); ack.Sequence != 2 {
				t.Errorf("sequence %d, want 2", ack.Sequence)
			}
		})
	}
}

func await[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: not within 30 s", what)
	}
}

func TestFreezeSilencesAndThawAnswers(t *testing.T) {
	t.Parallel()
	s := natstest.Listening(t)
	s.Stream(t, events)
	nc := s.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s.Freeze(t)
	ack, err := js.PublishAsync("events.a", nil)
	if err != nil {
		t.Fatal(err)
	}
	// A frozen server never answers, so waiting a little proves nothing more
	// than a long wait would: an answer that was under way would be here.
	if err := nc.FlushTimeout(200 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Fatalf("a frozen server answered a ping: %v", err)
	}
	if !nc.IsConnected() {
		t.Fatal("freezing closed the connection")
	}
	s.Thaw(t)
	await(t, ack.Ok(), "the publish is acknowledged")
}

func TestLameDuck(t *testing.T) {
	t.Parallel()
	s := natstest.Listening(t, natstest.WithConfig("lame_duck_grace_period: 10ms, lame_duck_duration: 30s"))
	s.Stream(t, events)
	told := make(chan struct{}, 1)
	s.Connect(t, nats.LameDuckModeHandler(func(*nats.Conn) { told <- struct{}{} }))
	s.LameDuck(t)
	await(t, told, "the client is told")
	s.Restart(t)
	publish(t, s.JetStream(t), "after")
}

func TestUsersAndPermissions(t *testing.T) {
	t.Parallel()
	const config = `authorization { users = [
		{ user: admin, password: s3cret }
		{ user: reader, password: s3cret, permissions: { publish: { deny: "events.>" } } }
	] }`
	for name, start := range map[string]func(testing.TB, ...natstest.Option) *natstest.Server{
		"in process": natstest.Start, "process": natstest.Listening,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, natstest.WithConfig(config), natstest.WithClient(nats.UserInfo("admin", "s3cret")))
			s.Stream(t, events)
			refused := make(chan error, 1)
			nc := s.Connect(t, nats.UserInfo("reader", "s3cret"),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
			if err := nc.Publish("events.a", nil); err != nil {
				t.Fatal(err)
			}
			if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("publishing without permission gave %v", err)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certs := natstest.NewCertificates(t)
	s := natstest.Listening(t, natstest.WithConfig(certs.ServerTLS(true)))
	ca := nats.RootCAs(certs.CA)
	nc := s.Connect(t, ca, nats.ClientCert(certs.ClientCert, certs.ClientKey))
	if _, err := nc.TLSConnectionState(); err != nil {
		t.Errorf("no TLS: %v", err)
	}
	if nc, err := nats.Connect(s.URL(), ca); err == nil {
		nc.Close()
		t.Error("connected without a client certificate")
	}
	if nc, err := nats.Connect(s.URL(), nats.ClientCert(certs.ClientCert, certs.ClientKey)); err == nil {
		nc.Close()
		t.Error("connected to a server of an unknown authority")
	}
}

func TestListeningServerIsAnOrdinaryServer(t *testing.T) {
	t.Parallel()
	s := natstest.Listening(t)
	if !strings.HasSuffix(s.URL(), s.Addr()) || s.Addr() == "" {
		t.Errorf("URL %q and Addr %q do not belong together", s.URL(), s.Addr())
	}
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
}
