package scenario

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// Peer is another way to bring tasks from PostgreSQL to JetStream, which compare
// measures beside the product.
type Peer struct {
	// Name is the peer's in keys and flags: lower case, no blanks.
	Name string
	// Title says what it is, with its version and settings.
	Title string
	// Polls: it looks for tasks at intervals. Defaults: its settings are those that
	// it comes with.
	Polls, Defaults bool
	// Floor: it sends without a table to relay from, and so has nothing to drain.
	Floor bool
	// Open makes it ready on a site. The caller closes what it returns.
	Open func(context.Context, Site) (Contender, error)
}

// Site is where a contender works. Everything on it is removed afterwards.
type Site struct {
	DSN     string // of PostgreSQL
	Schema  string // an empty one, for its tables
	NATSURL string
	Subject string // that its messages have; a stream takes them
	Name    string // unique among the sites
}

// Contender is a peer on a site. Messages carry the payload of their task, which is
// unique, and an id for the stream's duplicate window.
type Contender interface {
	// Producer connects one producer.
	Producer(context.Context) (Producer, error)
	// Fill commits n tasks in the fastest way that there is.
	Fill(ctx context.Context, n int) error
	// Run relays until ctx ends.
	Run(context.Context) error
	Close(context.Context) error
}

// Producer commits tasks on a connection of its own, one after the other.
type Producer interface {
	// Commit makes a task in a transaction, by the peer's own way to do that. It
	// returns when the commit was acknowledged.
	Commit(context.Context, Payload) (time.Time, error)
	Close(context.Context) error
}

// Payload is what every contender sends: about 200 bytes of JSON.
type Payload struct {
	Number int64  `json:"number"`
	To     string `json:"to"`
	Order  string `json:"order"`
	Text   string `json:"text"`
}

// NewPayload makes that of task n.
func NewPayload(n int64) Payload {
	return Payload{n, fmt.Sprintf("%032d@example.com", n), fmt.Sprintf("%032x", n), strings.Repeat("lorem ", 13)}
}

// numbered is the number of a contender's message.
func numbered(msg *nats.Msg) (int64, bool) {
	var p Payload
	err := json.Unmarshal(msg.Data, &p)
	return p.Number, err == nil && p.Number > 0
}

// entrant is who takes part: the product, a variant of it, or a peer.
type entrant struct {
	Peer
	// variant is set for the product.
	variant *variant
	// commitsOnly: it is there to compare the writers with.
	commitsOnly bool
}

// contest is an entrant on a lane of its own.
type contest struct {
	Contender
	lane *lane
}

// enter makes an entrant ready. The caller must close the contest.
func (b *bench) enter(ctx context.Context, r *rig, e entrant) (_ *contest, err error) {
	c := &contest{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	if e.variant != nil {
		if c.lane, err = r.newLaneOf(ctx, *e.variant); err == nil {
			c.Contender = &own{lane: c.lane}
		}
		return c, err
	}
	if c.lane, err = r.newBareLane(ctx); err != nil {
		return nil, err
	}
	l := c.lane
	c.Contender, err = e.Open(ctx, Site{DSN: r.dsn, Schema: l.schema, NATSURL: r.natsURL, Subject: l.prefix + "." + kind, Name: l.prefix})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	return c, nil
}

func (c *contest) close(ctx context.Context) (err error) {
	if c.Contender != nil {
		err = c.Close(context.WithoutCancel(ctx))
	}
	if c.lane != nil {
		err = errors.Join(err, c.lane.close(ctx))
	}
	return err
}

// start runs the contender.
func (c *contest) start(ctx context.Context) (*product, error) { return embed(ctx, c, nil, nil), nil }

// newBareLane makes a lane whose schema is empty.
func (r *rig) newBareLane(ctx context.Context) (_ *lane, err error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	id := strings.ToLower(rand.Text()[:10])
	l := &lane{rig: r, schema: "peer_bench_" + id, prefix: "bench_" + id, stream: "BENCH_" + strings.ToUpper(id)}
	if _, err := r.pool.Exec(ctx, `create schema `+pgx.Identifier{l.schema}.Sanitize()); err != nil {
		return nil, fmt.Errorf("make a schema: %w", err)
	}
	if err := dispatcher.CreateStream(ctx, r.js, l.prefix, l.stream); err != nil {
		return nil, errors.Join(err, l.close(ctx))
	}
	return l, nil
}
