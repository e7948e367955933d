package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Task is what a producer wants sent. Kind and one of Payload and Body are
// required. The limits are those of the table, which names them when it refuses
// a task: 64 MiB for the message body, and the NATS server may allow less
// (1 MiB by default), in which case the task becomes a dead letter.
type Task struct {
	// Kind is the NATS subject after the dispatcher's prefix, such as
	// "order.created": 1 to 190 bytes of letters, digits, "_" and "-" in
	// tokens separated by dots.
	Kind string
	// Payload is the message body as a value for [json.Marshal]. A
	// [json.RawMessage] is taken as it is. PostgreSQL keeps the JSON value,
	// not its spelling: key order and white space are lost.
	Payload any
	// Body is the message body as bytes, sent unchanged. An empty Body that
	// is not nil is a message without content.
	Body []byte
	// Headers become NATS headers: at most 64, and 16 kB in all.
	Headers map[string]string
	// OrderingKey is stored with the task, at most 255 bytes, and not used
	// yet: no order is promised, with or without it. Default "": none.
	OrderingKey string
	// SendAfter is the earliest time of sending, in microseconds. Default:
	// zero, which means at once.
	SendAfter time.Time
}

// Outbox is the outbox of one schema. The zero value is the table that the
// search_path of the transaction finds. It may be used by several goroutines.
type Outbox struct {
	// Schema is the schema of the table, taken literally. Default "": the
	// first of search_path that has one.
	Schema string
}

// Enqueue inserts the task with tx and returns its id. It is
// [Outbox.Enqueue] of the zero Outbox.
func Enqueue(ctx context.Context, tx any, task Task) (int64, error) {
	return Outbox{}.Enqueue(ctx, tx, task)
}

// EnqueueMany inserts the tasks with tx and returns their ids. It is
// [Outbox.EnqueueMany] of the zero Outbox.
func EnqueueMany(ctx context.Context, tx any, tasks []Task) ([]int64, error) {
	return Outbox{}.EnqueueMany(ctx, tx, tasks)
}

// Enqueue inserts the task with tx and returns its id. The task is sent once
// tx has committed.
//
// tx is the transaction that changes the producer's own data: a [pgx.Tx], a
// [*sql.Tx], or anything else with pgx's Query or database/sql's QueryContext.
// A connection or pool in its place works, and gives up the promise that task
// and change stand or fall together. After an error of the database tx is
// aborted, as after any failed statement.
func (o Outbox) Enqueue(ctx context.Context, tx any, task Task) (int64, error) {
	ids, err := o.EnqueueMany(ctx, tx, []Task{task})
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// EnqueueMany is [Outbox.Enqueue] of several tasks in one statement: all or
// none are inserted. The ids are in the order of the tasks, and ascending. The
// statement carries all bodies, and PostgreSQL takes at most 1 GB at once: keep
// a call below some tens of megabytes. No tasks: nothing is done.
func (o Outbox) EnqueueMany(ctx context.Context, tx any, tasks []Task) ([]int64, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	records := make([]record, len(tasks))
	for i, task := range tasks {
		r, err := task.record()
		if err != nil {
			return nil, fmt.Errorf("enqueue task %d of %d: %w", i+1, len(tasks), err)
		}
		records[i] = r
	}
	list, err := marshal(records)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	ids, err := queryIDs(ctx, tx, o.insertSQL(), string(list))
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", explain(err))
	}
	if len(ids) != len(tasks) {
		return nil, fmt.Errorf("enqueue: %d of %d tasks were inserted: a rule, trigger or policy on the table keeps rows away", len(ids), len(tasks))
	}
	return ids, nil
}

// record is a task as insertSQL reads it.
type record struct {
	Kind        string            `json:"kind"`
	Payload     *string           `json:"payload,omitempty"`
	Body        *[]byte           `json:"body,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	SendAfter   *time.Time        `json:"send_after,omitempty"`
}

// insertSQL takes one parameter, the list of records as JSON text, because
// every driver and every protocol mode can send a text; arrays and bytes they
// send in ways of their own. The payload is a string in it, so that the JSON
// null stays apart from no payload. Ids are drawn in the order of the records.
func (o Outbox) insertSQL() string {
	table := pgx.Identifier{"outbox"}
	if o.Schema != "" {
		table = pgx.Identifier{o.Schema, "outbox"}
	}
	return `insert into ` + table.Sanitize() + ` (kind, payload, body, headers, ordering_key, send_after)
		select kind, payload::jsonb, decode(body, 'base64'), headers, ordering_key, coalesce(send_after, now())
		from rows from (json_to_recordset($1::text::json) as (
			kind text, payload text, body text, headers jsonb, ordering_key text, send_after timestamptz
		)) with ordinality as task (kind, payload, body, headers, ordering_key, send_after, position)
		order by position
		returning id`
}

// record checks only what would not reach the table as it is, or what the table
// could not say as clearly.
func (t Task) record() (record, error) {
	r := record{Kind: t.Kind, Headers: t.Headers, OrderingKey: t.OrderingKey}
	if (t.Payload == nil) == (t.Body == nil) {
		return r, errors.New("exactly one of Payload and Body must be set: a message without content is Body []byte{}")
	}
	if err := t.checkTexts(); err != nil {
		return r, err
	}
	if t.Body != nil {
		r.Body = &t.Body
	} else {
		text, err := payloadText(t.Payload)
		if err != nil {
			return r, fmt.Errorf("kind %.80q: %w", t.Kind, err)
		}
		r.Payload = &text
	}
	if !t.SendAfter.IsZero() {
		if year := t.SendAfter.UTC().Year(); year < 1 || year > 9999 {
			return r, fmt.Errorf("SendAfter %v must lie in the years 1 to 9999: leave it zero to send at once", t.SendAfter)
		}
		utc := t.SendAfter.UTC()
		r.SendAfter = &utc
	}
	return r, nil
}

// checkTexts finds what encoding/json would replace silently, and what no
// PostgreSQL text can hold.
func (t Task) checkTexts() error {
	check := func(field, s string) error {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return fmt.Errorf("%s %.80q must be valid UTF-8 without NUL: send other bytes as Body", field, s)
		}
		return nil
	}
	errs := []error{check("Kind", t.Kind), check("OrderingKey", t.OrderingKey)}
	for name, value := range t.Headers {
		errs = append(errs, check("header name", name), check(fmt.Sprintf("the value of header %.80q", name), value))
	}
	return errors.Join(errs...)
}

func payloadText(payload any) (string, error) {
	text, err := marshal(payload)
	if err != nil {
		return "", fmt.Errorf("marshalling the payload: %w", err)
	}
	if !utf8.Valid(text) {
		return "", errors.New("the payload is not valid UTF-8: send it as Body")
	}
	if escapesNUL(text) {
		return "", errors.New(`the payload holds the character \u0000, which PostgreSQL's jsonb cannot store: remove it, or send the JSON as Body`)
	}
	return string(text), nil
}

// marshal is json.Marshal without the escapes that only matter inside HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// escapesNUL looks for the escape in valid JSON, and is not taken in by an
// escaped backslash before u0000.
func escapesNUL(text []byte) bool {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 || i+1 >= len(text) {
			return false
		}
		if bytes.HasPrefix(text[i+1:], []byte("u0000")) {
			return true
		}
		text = text[i+2:]
	}
}

// queryIDs runs the statement with whatever kind of transaction tx is.
func queryIDs(ctx context.Context, tx any, statement, arg string) ([]int64, error) {
	switch tx := tx.(type) {
	case interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}:
		rows, err := tx.Query(ctx, statement, arg)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	case interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	}:
		return querySQL(ctx, tx, statement, arg)
	}
	return nil, fmt.Errorf("a %T cannot run the insert: pass the pgx.Tx or *sql.Tx that changes your own data", tx)
}

func querySQL(ctx context.Context, tx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, statement, arg string,
) (ids []int64, err error) {
	rows, err := tx.QueryContext(ctx, statement, arg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// explain adds the limit and the remedy, which a driver's error text leaves out.
// Other details of the server may quote the row, and stay out.
func explain(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pgErr.Code {
	case checkViolation, untranslatable, invalidText:
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(pgErr.Detail+" "+pgErr.Hint))
	case insufficientPrivilege:
		return fmt.Errorf("%w: to return the ids, the role needs insert and select (id) on the table, and usage of its schema", err)
	}
	return err
}
