package scenario

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// kind is that of every task here.
const kind = "bench.task"

// lane is a fresh outbox, in a schema of its own, and the stream that takes its
// messages.
type lane struct {
	rig                    *rig
	schema, prefix, stream string
	// wake is how the dispatcher of this lane learns of new tasks.
	wake dispatcher.WakeMode
	// table is the outbox, quoted for SQL.
	table string
}

// newLane makes a lane as the product ships it. The caller must close it.
func (r *rig) newLane(ctx context.Context) (*lane, error) { return r.newLaneOf(ctx, masked) }

// newLaneOf makes a lane of a variant. The caller must close it.
func (r *rig) newLaneOf(ctx context.Context, v variant) (_ *lane, err error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	id := strings.ToLower(rand.Text()[:10])
	l := &lane{rig: r, schema: "outbox_bench_" + id, prefix: "bench_" + id, stream: "BENCH_" + strings.ToUpper(id), wake: v.wake}
	l.table = pgx.Identifier{l.schema, "outbox"}.Sanitize()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(ctx))
		}
	}()
	if err := l.migrate(ctx, v); err != nil {
		return nil, err
	}
	if err := dispatcher.CreateStream(ctx, r.js, l.prefix, l.stream); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *lane) migrate(ctx context.Context, v variant) error {
	conn, err := l.rig.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Release()
	if _, err := outbox.Migrate(ctx, conn.Conn(), outbox.MigrateOptions{Schema: l.schema, Wake: outbox.Wake(v.wake)}); err != nil {
		return err
	}
	if v.sql == "" {
		return nil
	}
	if _, err := conn.Exec(ctx, l.named(v.sql)); err != nil {
		return fmt.Errorf("make the variant %q: %w", v.name, err)
	}
	return nil
}

// named puts the lane's table and schema into a statement.
func (l *lane) named(sql string) string {
	return strings.NewReplacer("{outbox}", l.table, "{schema}", pgx.Identifier{l.schema}.Sanitize()).Replace(sql)
}

// fill inserts n tasks with payloads of about 200 bytes, and leaves the table as one that has been
// there for a while: visible, analysed, on the disk.
func (l *lane) fill(ctx context.Context, n int) error {
	_, err := l.rig.pool.Exec(ctx, l.named(`insert into {outbox} (kind, payload) select $1, `+payloadSQL+` from generate_series(1, $2) as n`), kind, n)
	if err != nil {
		return fmt.Errorf("insert %d tasks: %w", n, err)
	}
	return l.rest(ctx)
}

// smallBytes is about the size of the payload of payloadSQL as text.
const smallBytes = 200

// payloadSQL makes the payload of task n.
const payloadSQL = `jsonb_build_object('number', n, 'to', md5(n::text) || '@example.com', 'order', md5((-n)::text), 'text', repeat('lorem ', 13))`

// rest gives the servers what they would otherwise do in the middle of a
// measurement.
func (l *lane) rest(ctx context.Context) error {
	if _, err := l.rig.pool.Exec(ctx, l.named(`vacuum analyze {outbox}`)); err != nil {
		return fmt.Errorf("vacuum the outbox: %w", err)
	}
	return l.checkpoint(ctx)
}

// checkpoint writes everything to the disk, now and not in the middle of a measurement.
func (l *lane) checkpoint(ctx context.Context) error {
	_, err := l.rig.pool.Exec(ctx, `checkpoint`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		// Of a given server we may not have the right.
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// add inserts one task.
func (l *lane) add(ctx context.Context) error {
	if _, err := l.rig.pool.Exec(ctx, l.named(`insert into {outbox} (kind, payload) values ($1, '{}')`), kind); err != nil {
		return fmt.Errorf("insert a task: %w", err)
	}
	return nil
}

// verify checks that each of n tasks was stored once and none is left.
func (l *lane) verify(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	var unsent int
	if err := l.rig.pool.QueryRow(ctx, l.named(`select count(*) from {outbox} where sent_at is null`)).Scan(&unsent); err != nil {
		return fmt.Errorf("count unsent tasks: %w", err)
	}
	stored, err := l.stored(ctx)
	if err != nil {
		return err
	}
	if unsent != 0 || stored != n {
		return fmt.Errorf("of %d tasks %d are stored in the stream and %d are unsent in the table: this is a bug, the figures are worthless", n, stored, unsent)
	}
	return nil
}

// stored is how many messages the stream took, whether it still has them or not.
func (l *lane) stored(ctx context.Context) (int, error) {
	s, err := l.rig.js.Stream(ctx, l.stream)
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", l.stream, err)
	}
	return int(s.CachedInfo().State.LastSeq), nil // #nosec G115 -- a count of messages
}

// close removes the lane.
func (l *lane) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setupTimeout)
	defer cancel()
	_, err := l.rig.pool.Exec(ctx, `drop schema if exists `+pgx.Identifier{l.schema}.Sanitize()+` cascade`)
	if err != nil {
		err = fmt.Errorf("drop schema %s: %w", l.schema, err)
	}
	errStream := l.rig.js.DeleteStream(ctx, l.stream)
	if errStream != nil && !errors.Is(errStream, jetstream.ErrStreamNotFound) {
		return errors.Join(err, fmt.Errorf("delete stream %s: %w", l.stream, errStream))
	}
	return err
}
