package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// drivers are the ways into the database: each protocol mode of pgx, by itself
// and under database/sql.
func drivers() []string {
	var all []string
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		all = append(all, "pgx "+mode, "sql "+mode)
	}
	return all
}

// openTx begins a transaction through one of the drivers.
func openTx(t *testing.T, dsn, driver string) (tx any, commit, rollback func() error) {
	t.Helper()
	library, mode, _ := strings.Cut(driver, " ")
	dsn += "&default_query_exec_mode=" + mode
	if library == "pgx" {
		tx, err := pgtest.Connect(t, dsn).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx, func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) }
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	sqlTx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return sqlTx, sqlTx.Commit, sqlTx.Rollback
}

// row is what the table holds of a task.
type row struct {
	ID          int64
	Kind        string
	Payload     *string
	Body        []byte
	Headers     map[string]string
	OrderingKey *string
	SendAfter   time.Time
}

func rowsOf(t *testing.T, conn *pgx.Conn, table string) []row {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select id, kind, payload::text, body, headers, ordering_key, send_after from `+table+` order by id`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEnqueueRoundTrip(t *testing.T) {
	t.Parallel()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	due := time.Date(2031, 2, 3, 4, 5, 6, 789_123_000, time.FixedZone("", 5*3600+1800))
	awkward := "ü😀 \"q\" \\ ' <&> \u2028 %s $1 \t\n"
	tasks := []outbox.Task{
		{Kind: "bytes", Body: every, Headers: map[string]string{"h": "\"v\" ü\t\\", "Nats-TTL": "1h"}, OrderingKey: awkward, SendAfter: due},
		{Kind: "empty", Body: []byte{}},
		{Kind: "struct", Payload: struct {
			A string `json:"a"`
			N int64  `json:"n"`
		}{awkward, 1<<62 + 1}},
		{Kind: "raw", Payload: json.RawMessage(`{"big": 12345678901234567890.123, "s": "\\u0000 \u00fc"}`)},
		{Kind: "null", Payload: json.RawMessage("null")},
		{Kind: "string", Payload: awkward},
		{Kind: "nil_map", Payload: map[string]int(nil)},
	}
	dsn := pgtest.NewDB(t)
	conn := pgtest.Connect(t, dsn)
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			pgtest.Exec(t, conn, `truncate outbox`)
			tx, commit, _ := openTx(t, dsn, driver)
			ids, err := outbox.EnqueueMany(t.Context(), tx, tasks)
			if err != nil {
				t.Fatal(err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			quoted, err := json.Marshal(awkward)
			if err != nil {
				t.Fatal(err)
			}
			now := pgtest.Value[time.Time](t, conn, `select created_at from outbox limit 1`)
			want := []row{
				{Kind: "bytes", Body: every, Headers: tasks[0].Headers, OrderingKey: &awkward, SendAfter: due},
				{Kind: "empty", Body: []byte{}, SendAfter: now},
				{Kind: "struct", Payload: new(`{"a": ` + normal(t, conn, string(quoted)) + `, "n": 4611686018427387905}`), SendAfter: now},
				{Kind: "raw", Payload: new(`{"s": "\\u0000 ü", "big": 12345678901234567890.123}`), SendAfter: now},
				{Kind: "null", Payload: new("null"), SendAfter: now},
				{Kind: "string", Payload: new(normal(t, conn, string(quoted))), SendAfter: now},
				{Kind: "nil_map", Payload: new("null"), SendAfter: now},
			}
			for i := range want {
				want[i].ID = ids[i]
			}
			if diff := cmp.Diff(want, rowsOf(t, conn, "outbox")); diff != "" {
				t.Errorf("rows (+) differ from tasks (-):\n%s", diff)
			}
		})
	}
}

// normal is the text that jsonb prints for a JSON text.
func normal(t *testing.T, conn *pgx.Conn, text string) string {
	t.Helper()
	return pgtest.Value[string](t, conn, `select $1::text::jsonb::text`, text)
}

func TestEnqueueStandsAndFallsWithTheTransaction(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			pgtest.Exec(t, conn, `truncate outbox`)
			l.wakes(t)
			tx, _, rollback := openTx(t, dsn, driver)
			if _, err := outbox.Enqueue(t.Context(), tx, outbox.Task{Kind: "a", Payload: 1}); err != nil {
				t.Fatal(err)
			}
			if err := rollback(); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Value[int](t, conn, `select count(*) from outbox`); n != 0 {
				t.Errorf("%d tasks after the rollback", n)
			}
			if got := l.wakes(t); got != 0 {
				t.Errorf("%d notifications after the rollback", got)
			}
			tx, commit, _ := openTx(t, dsn, driver)
			id, err := outbox.Enqueue(t.Context(), tx, outbox.Task{Kind: "a", Payload: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			if got := pgtest.Value[int64](t, conn, `select id from outbox`); got != id {
				t.Errorf("Enqueue = %d, the row has %d", id, got)
			}
		})
	}
}

func TestEnqueueManyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	conn, l := pgtest.Connect(t, dsn), listen(t, dsn, "public")
	tasks := make([]outbox.Task, 2000)
	for i := range tasks {
		tasks[i] = outbox.Task{Kind: fmt.Sprintf("k%d", i), Payload: i}
	}
	ids, err := outbox.EnqueueMany(t.Context(), conn, tasks)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(ids) {
		t.Error("the ids do not ascend")
	}
	rows := rowsOf(t, conn, "outbox")
	if len(rows) != len(tasks) {
		t.Fatalf("%d rows of %d tasks", len(rows), len(tasks))
	}
	for i, r := range rows {
		if r.ID != ids[i] || r.Kind != tasks[i].Kind {
			t.Fatalf("row %d is task %q with id %d, want %q with id %d", i, r.Kind, r.ID, tasks[i].Kind, ids[i])
		}
	}
	if got := l.wakes(t); got != 1 {
		t.Errorf("%d notifications, want 1: many tasks are one statement", got)
	}
	if ids, err := outbox.EnqueueMany(t.Context(), conn, nil); err != nil || len(ids) != 0 {
		t.Errorf("no tasks: %v, %v", ids, err)
	}
}

func TestEnqueueIntoAnotherSchema(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	for _, schema := range oddSchemas {
		migrate(t, conn, schema)
		id, err := outbox.Outbox{Schema: schema}.Enqueue(t.Context(), conn, outbox.Task{Kind: "a", Payload: 1})
		if err != nil || id != 1 {
			t.Errorf("Enqueue into %q = %d, %v", schema, id, err)
		}
		if rows := rowsOf(t, conn, pgx.Identifier{schema, "outbox"}.Sanitize()); len(rows) != 1 {
			t.Errorf("%d rows in %q", len(rows), schema)
		}
	}
	if n := pgtest.Value[int](t, conn, `select count(*) from public.outbox`); n != 0 {
		t.Errorf("%d tasks went to the schema of search_path", n)
	}
}

func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	good := outbox.Task{Kind: "a", Payload: 1}
	with := func(change func(*outbox.Task)) outbox.Task {
		task := good
		change(&task)
		return task
	}
	for name, c := range map[string]struct {
		task  outbox.Task
		parts []string
	}{
		"nothing to send":   {outbox.Task{Kind: "a"}, []string{"exactly one of Payload and Body"}},
		"both":              {outbox.Task{Kind: "a", Payload: 1, Body: []byte{}}, []string{"exactly one of Payload and Body"}},
		"not JSON":          {outbox.Task{Kind: "chan", Payload: make(chan int)}, []string{`kind "chan"`, "marshalling the payload"}},
		"broken raw JSON":   {outbox.Task{Kind: "a", Payload: json.RawMessage("{")}, []string{"marshalling the payload"}},
		"raw not UTF-8":     {outbox.Task{Kind: "a", Payload: json.RawMessage("\"\xff\"")}, []string{"not valid UTF-8", "Body"}},
		"NUL in payload":    {outbox.Task{Kind: "a", Payload: "a\x00b"}, []string{`\u0000`, "Body"}},
		"lone surrogate":    {outbox.Task{Kind: "a", Payload: json.RawMessage(`"\ud800"`)}, []string{"surrogate"}},
		"kind":              {with(func(t *outbox.Task) { t.Kind = "a b" }), []string{"'a b'", "1 to 190 bytes", "order.created"}},
		"kind not UTF-8":    {with(func(t *outbox.Task) { t.Kind = "a\xffb" }), []string{`Kind "a\xffb"`, "UTF-8"}},
		"kind with NUL":     {with(func(t *outbox.Task) { t.Kind = "a\x00b" }), []string{`Kind "a\x00b"`, "NUL"}},
		"key with NUL":      {with(func(t *outbox.Task) { t.OrderingKey = "\x00" }), []string{"OrderingKey"}},
		"key too long":      {with(func(t *outbox.Task) { t.OrderingKey = strings.Repeat("x", 256) }), []string{"256 bytes", "255"}},
		"header name":       {with(func(t *outbox.Task) { t.Headers = map[string]string{"a b": ""} }), []string{`"a b"`, "128 characters"}},
		"header name bytes": {with(func(t *outbox.Task) { t.Headers = map[string]string{"\xff": ""} }), []string{"header name", "UTF-8"}},
		"header value NUL":  {with(func(t *outbox.Task) { t.Headers = map[string]string{"h": "\x00"} }), []string{`header "h"`, "NUL"}},
		"header value line": {with(func(t *outbox.Task) { t.Headers = map[string]string{"h": "a\nb"} }), []string{`header "h"`, "one line"}},
		"reserved header":   {with(func(t *outbox.Task) { t.Headers = map[string]string{"Nats-Msg-Id": "1"} }), []string{"Nats-Msg-Id", "reserved", "another name"}},
		"year 10000":        {with(func(t *outbox.Task) { t.SendAfter = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }), []string{"SendAfter", "9999"}},
		"year 0":            {with(func(t *outbox.Task) { t.SendAfter = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }), []string{"SendAfter", "years 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := pgtest.Connect(t, dsn)
			_, err := outbox.EnqueueMany(t.Context(), conn, []outbox.Task{good, c.task})
			wantInError(t, err, append(c.parts, "enqueue")...)
		})
	}
	t.Run("nothing got in", func(t *testing.T) {
		if n := pgtest.Value[int](t, pgtest.Connect(t, dsn), `select count(*) from outbox`); n != 0 {
			t.Errorf("%d tasks of refused calls", n)
		}
	})
}

func TestEnqueueNamesTheTypeItCannotUse(t *testing.T) {
	t.Parallel()
	for _, tx := range []any{nil, 42, struct{}{}, context.Background()} {
		_, err := outbox.Enqueue(t.Context(), tx, outbox.Task{Kind: "a", Payload: 1})
		wantInError(t, err, fmt.Sprintf("%T", tx), "pgx.Tx", "*sql.Tx")
	}
}

func TestEnqueueNoticesRowsThatVanish(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.NewDB(t))
	pgtest.Exec(t, conn, `create function drop_row() returns trigger language plpgsql as 'begin return null; end';
		create trigger drop_row before insert on outbox for each row execute function drop_row()`)
	_, err := outbox.Enqueue(t.Context(), conn, outbox.Task{Kind: "a", Payload: 1})
	wantInError(t, err, "0 of 1 tasks were inserted")
}
