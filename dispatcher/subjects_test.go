package dispatcher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

// reason waits until the kind's task is dead and returns why.
func (r *rig) reason(kind string) string {
	r.t.Helper()
	eventually(r.t, kind+" is dead", func() error {
		if n := query[int](r, `select count(*) from outbox where kind = $1 and dead_at is null`, kind); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	return query[string](r, `select last_error from outbox where kind = $1`, kind)
}

// withNeighbours inserts tasks in one statement around the bad one, so that they are
// claimed together.
func (r *rig) withNeighbours(values string) {
	r.t.Helper()
	r.exec(`insert into outbox (kind, payload, body, headers) values ('good.1', '{}', null, null), ` + values + `, ('good.2', '{}', null, null)`)
}

func (r *rig) awaitNeighbours() {
	r.t.Helper()
	eventually(r.t, "the neighbours are sent", func() error {
		if n := query[int](r, `select count(*) from outbox where kind like 'good.%' and sent_at is null`); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	if n := query[int](r, `select count(*) from outbox where kind like 'good.%' and attempts <> 1`); n > 0 {
		r.t.Errorf("%d neighbours needed more than one attempt", n)
	}
}

// What the broker can never take is a dead letter at once, alone, with a reason
// that names the limit. The table's checks are dropped, as rows may be older.
func TestImpossibleTasksAreDeadAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ values, kind, want string }{
		"2 MiB body":       {`('big', null, convert_to(repeat('x', 2097152), 'UTF8'), null)`, "big", "2097152 bytes"},
		"2 MiB payload":    {`('big', jsonb_build_object('x', repeat('x', 2097152)), null, null)`, "big", "max_payload"},
		"body and headers": {`('big', null, convert_to(repeat('x', 1048576), 'UTF8'), null)`, "big", "headers included"},
		"5,000-byte kind":  {`(repeat('k', 5000), '{}', null, null)`, strings.Repeat("k", 5000), "at most 255"},
		"wildcard":         {`('a.>', '{}', null, null)`, "a.>", "letters, digits"},
		"empty token":      {`('a..b', '{}', null, null)`, "a..b", "letters, digits"},
		"header blank":     {`('h', '{}', null, '{"a b": "c"}')`, "h", `header name "a b"`},
		"header id":        {`('h', '{}', null, '{"Nats-Msg-Id": "c"}')`, "h", "reserved"},
		"header number":    {`('h', '{}', null, '{"n": 1}')`, "h", "object of strings"},
		"huge headers":     {`('h', '{}', null, jsonb_build_object('n', repeat('x', 70000)))`, "h", "header size exceeds"},
		"bad TTL":          {`('h', '{}', null, '{"Nats-TTL": "soon"}')`, "h", "TTL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newBareRig(t, natstest.Start(t))
			r.createStream(jetstream.StreamConfig{AllowMsgTTL: true})
			r.dropChecks()
			r.withNeighbours(tt.values)
			r.start()
			r.awaitNeighbours()
			if got := r.reason(tt.kind); !strings.Contains(got, tt.want) {
				t.Errorf("reason %q, want %q in it", got, tt.want)
			}
			if n := query[int](r, `select attempts from outbox where kind = $1`, tt.kind); n != 1 {
				t.Errorf("%d attempts, want 1", n)
			}
		})
	}
}

// dropChecks removes all check constraints of the table.
func (r *rig) dropChecks() {
	r.t.Helper()
	r.exec(`do $$ declare c name; begin
		for c in select conname from pg_constraint where conrelid = 'outbox'::regclass and contype = 'c' loop
			execute format('alter table outbox drop constraint %I', c);
		end loop; end $$`)
}

// A subject that no stream captures is that kind's trouble alone.
func TestKindWithoutAStream(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{Subjects: []string{"outbox.good.*"}})
	r.withNeighbours(`('stray', '{}', null, null)`)
	r.start(func(c *Config) { c.MaxAttempts = 3 })
	r.awaitNeighbours()
	if got := r.reason("stray"); !strings.Contains(got, `no stream captures subject "outbox.stray"`) {
		t.Errorf("reason %q", got)
	}
	if n := query[int](r, `select attempts from outbox where kind = 'stray'`); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}

// The server reports a permission violation on the connection; the message only
// goes unanswered.
func TestKindWithoutPermission(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.WithConfig(`
		accounts { A { jetstream: enabled, users: [
			{user: admin, password: p},
			{user: limited, password: p, permissions: {
				publish: {allow: ["outbox.good.>", "$JS.API.>"]}, subscribe: {allow: ["_INBOX.>"]}}}
		]}}`), natstest.WithClient(nats.UserInfo("admin", "p")))
	r := newBareRig(t, server)
	r.createStream(jetstream.StreamConfig{})
	r.withNeighbours(`('secret', '{}', null, null)`)
	nc := server.Connect(t, append(NATSOptions(), nats.UserInfo("limited", "p"))...)
	r.start(func(c *Config) { c.NATS, c.MaxAttempts = nc, 2 })
	r.awaitNeighbours()
	if got := r.reason("secret"); !strings.Contains(got, `denies publishing on "outbox.secret"`) {
		t.Errorf("reason %q", got)
	}
}

// Without the right to ask for streams the dispatcher is in the dark, but works.
func TestNoPermissionOnTheAPI(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.WithConfig(`
		accounts { A { jetstream: enabled, users: [
			{user: admin, password: p},
			{user: limited, password: p, permissions: {
				publish: {allow: ["outbox.>"]}, subscribe: {allow: ["_INBOX.>"]}}}
		]}}`), natstest.WithClient(nats.UserInfo("admin", "p")))
	r := newBareRig(t, server)
	r.createStream(jetstream.StreamConfig{})
	r.insertMany(10)
	nc := server.Connect(t, append(NATSOptions(), nats.UserInfo("limited", "p"))...)
	d := r.start(func(c *Config) { c.NATS = nc })
	r.awaitSettled()
	if h := d.Health(); !h.Ready() || len(h.Stream) != 1 || h.Stream[0].Severity != SeverityWarning {
		t.Errorf("health %+v, want ready with one warning", h)
	}
}

// A full stream refuses; the tasks wait and leave when there is room.
func TestFullStream(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	cfg := jetstream.StreamConfig{Name: "OUTBOX", Subjects: []string{"outbox.>"}, MaxMsgs: 10, Discard: jetstream.DiscardNew}
	r.createStream(cfg)
	r.insertMany(30)
	d := r.start(func(c *Config) { c.MaxAttempts = 1000 })
	eventually(t, "some are refused", func() error {
		if n := query[int](r, `select count(*) from outbox where last_error like '%maximum messages exceeded%'`); n < 20 {
			return fmt.Errorf("%d of 20", n)
		}
		return nil
	})
	d.streams.mu.Lock()
	d.streams.checked = time.Time{} // as if the last check was long ago
	d.streams.mu.Unlock()
	eventually(t, "it says that the stream is full", func() error {
		for _, f := range d.Health().Stream {
			if f.Check == "full" {
				return nil
			}
		}
		return fmt.Errorf("findings %v", d.Health().Stream)
	})
	cfg.MaxMsgs = -1
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.awaitSettled()
	if n := len(r.storedIDs()); n != 30 {
		t.Errorf("%d tasks stored, want 30", n)
	}
}

// Anybody who subscribes to the subject can answer. Such an answer proves nothing.
func TestForeignAckIsNoAck(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{Subjects: []string{"outbox.good.*"}})
	nc := r.nats.Connect(t)
	if _, err := nc.Subscribe("outbox.faked", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"stream":"FAKE","seq":1}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.withNeighbours(`('faked', '{}', null, null)`)
	r.start(func(c *Config) { c.MaxAttempts = 2 })
	r.awaitNeighbours()
	if got := r.reason("faked"); !strings.Contains(got, `"FAKE"`) {
		t.Errorf("reason %q", got)
	}
}

// A stream that was created later for new kinds is one of ours.
func TestStreamAddedLater(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{Subjects: []string{"outbox.good.*"}})
	d := r.start()
	r.insert("good.1", `{}`)
	r.awaitSettled()
	// The list of streams must not be fresh by chance.
	d.streams.mu.Lock()
	d.streams.checked = d.streams.checked.Add(-2 * time.Second)
	d.streams.mu.Unlock()
	r.createStream(jetstream.StreamConfig{Name: "MORE", Subjects: []string{"outbox.more"}})
	r.insert("more", `{}`)
	r.awaitAll(1)
	if n := query[int](r, `select count(*) from outbox where attempts <> 1`); n > 0 {
		t.Errorf("%d tasks needed more than one attempt", n)
	}
}

// A stream that takes messages and says nothing must not stop the other streams.
func TestSilentStreamStopsOnlyItself(t *testing.T) {
	t.Parallel()
	r := newBareRig(t, natstest.Start(t))
	r.createStream(jetstream.StreamConfig{Subjects: []string{"outbox.good.*"}})
	r.createStream(jetstream.StreamConfig{Name: "MUTE", Subjects: []string{"outbox.mute"}, NoAck: true})
	r.exec(`insert into outbox (kind, payload) select 'mute', '{}' from generate_series(1, 500)`)
	r.exec(`insert into outbox (kind, payload) select 'good.1', '{}' from generate_series(1, 5)`)
	r.start(func(c *Config) { c.PublishTimeout = time.Second })
	r.awaitNeighbours()
	r.exec(`insert into outbox (kind, payload) select 'good.2', '{}' from generate_series(1, 5)`)
	r.awaitNeighbours()
	if n := query[int](r, `select count(*) from outbox where kind = 'mute' and (attempts > 0 or dead_at is not null)`); n > 0 {
		t.Errorf("%d tasks paid for the silence", n)
	}
}
