package faults

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// sceneFullStream: the stream refuses tasks until it has room again.
func sceneFullStream(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	if !w.limitStream(t.Context(), true) {
		t.Fatal("the stream cannot be limited")
	}
	w.enqueue(50, Transaction{})
	eventually(t, "the tasks were tried", func() error {
		if n := w.value(`select count(*) from outbox where attempts > 0 or sent_at is not null`); n < 51 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if !w.limitStream(t.Context(), false) {
		t.Fatal("the limit cannot be lifted")
	}
	w.drain(still)
	e := w.evidence()
	e.Refusals = true
	return Check(e)
}

// sceneBrokerDies: the broker freezes, and dies before it has read what it was sent.
func sceneBrokerDies(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	w.broker.Freeze(t)
	w.enqueue(200, Transaction{})
	wait(t.Context(), 3*time.Second)
	w.broker.Kill(t)
	w.broker.Restart(t)
	w.drain(still)
	return Check(w.evidence())
}

// sceneIDsComeBack: crashes of the database take back tasks that were sent, and
// new tasks get their ids.
func sceneIDsComeBack(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	for again := false; !again; {
		// The sequence logs its values in blocks of 32.
		w.enqueue(100, Transaction{Volatile: true}, `set local synchronous_commit = off`)
		w.awaitStored(uint64(w.history.Tasks()))
		highest := w.value(`select max(id) from outbox`)
		if err := w.pg.Kill(); err != nil {
			t.Fatal(err)
		}
		w.history.Crashed(time.Now())
		if err := w.pg.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		last := w.enqueue(100, Transaction{})
		again = w.value(fmt.Sprintf(`select min(id) from outbox where (headers ->> 'Soak-N')::bigint > %d`, last-100)) <= highest
		w.drain(still)
	}
	return Check(w.evidence())
}

// sceneNoTrigger: tasks come without a wake, as from a replication apply worker.
func sceneNoTrigger(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	// What follows a task is over: the next look is the sweep's.
	wait(t.Context(), 3*time.Second)
	w.enqueue(5, Transaction{}, `set local session_replication_role = replica`)
	w.drain(still)
	return Check(w.evidence())
}

// sceneLateCommit: a transaction commits long after later ones.
func sceneLateCommit(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	conn := pgtest.Connect(t, w.pg.DSN("postgres"))
	late := Transaction{First: w.history.Reserve(3), Count: 3, Begun: time.Now()}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), insertSQL, late.First, late.First+2); err != nil {
		t.Fatal(err)
	}
	w.enqueue(20, Transaction{})
	wait(t.Context(), 4*time.Second)
	late.Outcome = commitOutcome(tx.Commit(t.Context()))
	late.Ended = time.Now()
	w.history.Record(late)
	w.drain(still)
	return Check(w.evidence())
}

// sceneLostAnswers: the broker stores tasks and half of its answers are lost.
// The stream's window is long enough for a resend, not for much more.
func sceneLostAnswers(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary, window: 8 * time.Second})
	p := w.nodes[0].nats
	var once sync.Once
	// The first task has the number 1.
	remove := p.Before(faultproxy.ToClient, []byte(`"seq":25`), func(*faultproxy.Conn) {
		once.Do(func() { p.Stall(faultproxy.ToClient) })
	})
	defer remove()
	w.enqueue(50, Transaction{})
	w.awaitStored(51)
	wait(t.Context(), 1500*time.Millisecond)
	p.Resume()
	w.drain(still + 50*time.Second)
	return Check(w.evidence())
}

// sceneGhosts: a dispatcher is cut off from the broker with a claim in its hands.
// Another one sends the tasks; the first one comes back when the stream's window
// has passed.
func sceneGhosts(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary, nodes: 2, window: 2 * time.Second})
	a, b := w.nodes[0], w.nodes[1]
	b.send(syscall.SIGSTOP)
	w.awaitOne()
	var once sync.Once
	remove := a.pg.Before(faultproxy.ToClient, []byte("soak.k"), func(*faultproxy.Conn) {
		once.Do(func() {
			a.nats.Refuse()
			a.nats.Cut()
			wait(t.Context(), 200*time.Millisecond) // it notices
		})
	})
	defer remove()
	n := uint64(w.enqueue(50, Transaction{}))
	eventually(t, "the first dispatcher has given up", func() error {
		if open := a.nats.Open(); open > 0 {
			return errors.New("it is connected")
		}
		return nil
	})
	b.send(syscall.SIGCONT)
	w.awaitStored(n)
	w.drain(still)
	wait(t.Context(), w.window+time.Second)
	b.send(syscall.SIGSTOP)
	defer b.send(syscall.SIGCONT)
	eventually(t, "the port is free", a.nats.Allow)
	w.enqueue(1, Transaction{}) // sent behind whatever the first one still had
	w.awaitStored(n + 1)
	w.drain(still)
	return Check(w.evidence())
}

// sceneFrozenHolder: a dispatcher freezes with a claim in its hands, and stays so.
func sceneFrozenHolder(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary, nodes: 2})
	a, b := w.nodes[0], w.nodes[1]
	b.send(syscall.SIGSTOP)
	w.awaitOne()
	a.nats.Stall(faultproxy.ToServer)
	w.enqueue(50, Transaction{})
	eventually(t, "the claim is in its hands", func() error {
		if n := w.value(`select count(*) from pg_stat_activity where state = 'idle in transaction'`); n == 0 {
			return errors.New("no transaction is open")
		}
		a.send(syscall.SIGSTOP)
		if n := w.value(`select count(*) from pg_stat_activity where state = 'idle in transaction'`); n == 0 {
			a.send(syscall.SIGCONT)
			return errors.New("it was settled")
		}
		return nil
	})
	b.send(syscall.SIGCONT)
	w.drain(still)
	return Check(w.evidence())
}

// sceneOddReason: the broker refuses a kind for ever, with a reason that no text
// column takes.
func sceneOddReason(t *testing.T, binary string) Verdict {
	w := scene(t, worldOptions{binary: binary})
	cfg := jetstream.StreamConfig{
		Name: streamName, Duplicates: w.window, Discard: jetstream.DiscardNew,
		Subjects: []string{"outbox.soak.k0", "outbox.soak.k1", "outbox.soak.k2", "outbox.soak.k4"},
	}
	if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	nc := w.broker.Connect(t)
	if _, err := nc.Subscribe("outbox.soak.k3", func(m *nats.Msg) {
		// The error code of a message that is too large.
		_ = m.Respond([]byte(`{"error":{"code":400,"err_code":10054,"description":"a\u0000b"}}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	w.enqueue(40, Transaction{})
	w.drain(still)
	e := w.evidence()
	e.Doomed = func(n int64) bool { return n%5 == 3 }
	return Check(e)
}
