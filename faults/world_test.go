package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

const streamName = "OUTBOX"

// world is a database server, a broker and some dispatchers, with a network
// between them that can be broken, and the history of what producers did.
type world struct {
	t       *testing.T
	pg      *pgserver.Server
	broker  *natstest.Server
	js      jetstream.JetStream // around the proxies
	window  time.Duration
	nodes   []*node
	entry   *faultproxy.Proxy // the producers' way to the database
	history History
}

// worldOptions say how a world is made.
type worldOptions struct {
	binary string
	nodes  int
	wake   outbox.Wake
	window time.Duration
	env    []string // of the dispatchers
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := &world{t: t, window: o.window}
	// A large checkpoint distance: an immediate stop is what shall be slow to
	// recover from, not every minute of the run.
	w.pg = pgtest.OwnServer(t, pgserver.Options{TCP: true, Settings: map[string]string{
		"max_wal_size": "8GB", "log_min_messages": "fatal", "restart_after_crash": "on",
	}})
	conn := pgtest.Connect(t, w.pg.DSN("postgres"))
	if _, err := outbox.Migrate(t.Context(), conn, outbox.MigrateOptions{Wake: o.wake}); err != nil {
		t.Fatal(err)
	}
	w.broker = natstest.Listening(t)
	w.js = w.broker.JetStream(t)
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"outbox.>"}, Duplicates: o.window, Discard: jetstream.DiscardNew,
	}); err != nil {
		t.Fatal(err)
	}
	w.entry = w.proxy(w.pgAddr())
	for i := range o.nodes {
		n := &node{w: w, binary: o.binary, pg: w.proxy(w.pgAddr()), nats: w.proxy(w.broker.Addr()), log: filepath.Join(t.TempDir(), strconv.Itoa(i))}
		n.env = append([]string{
			"DATABASE_URL=" + w.dsn(n.pg), "NATS_URL=nats://" + n.nats.Addr(), "OUTBOX_WAKE=" + string(o.wake),
		}, o.env...)
		w.nodes = append(w.nodes, n)
		t.Cleanup(n.end)
		n.start()
	}
	return w
}

func (w *world) proxy(upstream string) *faultproxy.Proxy {
	w.t.Helper()
	p, err := faultproxy.New(upstream)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.Close)
	return p
}

func (w *world) pgAddr() string {
	u, err := url.Parse(w.pg.TCPDSN("postgres"))
	if err != nil {
		w.t.Fatal(err)
	}
	return u.Host
}

// dsn leads through a proxy.
func (w *world) dsn(p *faultproxy.Proxy) string {
	u, err := url.Parse(w.pg.TCPDSN("postgres"))
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = p.Addr()
	return u.String()
}

// checkLogs looks for what a dispatcher must never say.
func (w *world) checkLogs() {
	w.t.Helper()
	for i, n := range w.nodes {
		text, err := os.ReadFile(n.log)
		if err != nil {
			w.t.Error(err)
			continue
		}
		for line := range strings.Lines(string(text)) {
			for _, bad := range []string{"panic:", "DATA RACE", "nothing explains it", "goroutine stack exceeds"} {
				if strings.Contains(line, bad) {
					w.t.Errorf("dispatcher %d said: %s", i, line)
				}
			}
		}
	}
}

// drain waits until no task is left, for as long as there is progress.
func (w *world) drain(patience time.Duration) (left int64) {
	w.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	left = -1
	for progress := time.Now(); time.Since(progress) < patience; <-tick.C {
		var n int64
		err := error(nil)
		if conn == nil || conn.IsClosed() {
			conn, err = pgx.Connect(w.t.Context(), w.pg.DSN("postgres"))
		}
		if err == nil {
			err = conn.QueryRow(w.t.Context(), `select count(*) from outbox where sent_at is null and dead_at is null`).Scan(&n)
		}
		switch {
		case err != nil: // the database may still be recovering
			continue
		case n == 0:
			return 0
		case left < 0 || n < left:
			left, progress = n, time.Now()
		}
	}
	return left
}

// evidence collects what the checker judges.
func (w *world) evidence() Evidence {
	w.t.Helper()
	e := w.history.Evidence()
	e.Window, e.Sum = w.window, contentSum
	e.Rows, e.Stored = w.rows(), w.dump()
	return e
}

func (w *world) rows() []Row {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.pg.DSN("postgres"))
	rows, err := conn.Query(w.t.Context(),
		`select (headers ->> 'Soak-N')::bigint, id, attempts, sent_at is not null, dead_at is not null from outbox`)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// dump reads the whole stream.
func (w *world) dump() []Message {
	w.t.Helper()
	js := w.broker.JetStream(w.t)
	stream, err := js.Stream(w.t.Context(), streamName)
	if err != nil {
		w.t.Fatal(err)
	}
	want := stream.CachedInfo().State.Msgs
	if want == 0 {
		return nil
	}
	cons, err := stream.OrderedConsumer(w.t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	messages, err := cons.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		w.t.Fatal(err)
	}
	defer messages.Stop()
	all := make([]Message, 0, want)
	for uint64(len(all)) < want {
		m, err := messages.Next(jetstream.NextMaxWait(patience))
		if err != nil {
			w.t.Fatalf("read message %d of %d: %v", len(all)+1, want, err)
		}
		read, err := readMessage(m)
		if err != nil {
			w.t.Errorf("message %d: %v", len(all)+1, err)
		}
		all = append(all, read)
	}
	return all
}

func readMessage(m jetstream.Msg) (Message, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Message{}, err
	}
	var body struct {
		N   int64  `json:"n"`
		Pad string `json:"pad"`
	}
	if err := json.Unmarshal(m.Data(), &body); err != nil {
		return Message{}, fmt.Errorf("body %.100q: %w", m.Data(), err)
	}
	id, err := strconv.ParseInt(m.Headers().Get(dispatcher.HeaderTaskID), 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("task id: %w", err)
	}
	kind := strings.TrimPrefix(m.Subject(), "outbox.")
	return Message{N: body.N, TaskID: id, Time: meta.Timestamp, Sum: checksum(kind, m.Headers().Get("Soak-N"), body.Pad)}, nil
}

func checksum(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = io.WriteString(h, p+"\x00") // never fails
	}
	return h.Sum64()
}
