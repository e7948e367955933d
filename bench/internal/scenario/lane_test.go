package scenario

import (
	"strings"
	"testing"
)

func TestVerifySeesWhatIsMissingAndWhatIsTooMuch(t *testing.T) {
	ctx := t.Context()
	r := testRig(t)
	l, err := r.newLane(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	if err := l.fill(ctx, n); err != nil {
		t.Fatal(err)
	}
	check := func(when, want string) {
		t.Helper()
		switch err := l.verify(ctx, n); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", when, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want an error that tells of %q", when, err, want)
		}
	}
	messages := newMessages(l, []byte("{}"), at(0))
	send := func(id int64) {
		t.Helper()
		if _, err := r.js.PublishMsg(ctx, messages.of(id)); err != nil {
			t.Fatal(err)
		}
	}
	check("before anything was sent", "0 are stored")
	for id := range int64(n) {
		send(id + 1)
	}
	check("all stored, none marked", "3 are unsent")
	if _, err := r.pool.Exec(ctx, l.named(`update {outbox} set sent_at = now()`)); err != nil {
		t.Fatal(err)
	}
	check("all stored and marked", "")
	send(n)
	check("a copy that the stream drops", "")
	send(n + 1)
	check("a message too many", "4 are stored")
}

func TestFloorTableHasNoChecksButTheIndexes(t *testing.T) {
	ctx := t.Context()
	r := testRig(t)
	l, err := newFloorLane(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	var checks, triggers, indexes int
	err = r.pool.QueryRow(ctx, `
select (select count(*) from pg_constraint where conrelid = $1::regclass and contype = 'c'),
       (select count(*) from pg_trigger where tgrelid = $1::regclass),
       (select count(*) from pg_index where indrelid = $1::regclass)`, l.table).Scan(&checks, &triggers, &indexes)
	if err != nil {
		t.Fatal(err)
	}
	if checks != 0 || triggers != 0 || indexes < 2 {
		t.Errorf("the floor's table has %d checks, %d triggers and %d indexes; want none, none and the outbox's", checks, triggers, indexes)
	}
}
