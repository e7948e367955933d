package dispatcher

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestSnapshotPast(t *testing.T) {
	t.Parallel()
	const epoch = 1 << 32
	for name, c := range map[string]struct {
		xmin, xmax uint64
		running    []uint64
		xid        uint32
		want       bool
	}{
		"before all":                       {100, 110, []uint64{100, 105}, 99, true},
		"oldest running":                   {100, 110, []uint64{100, 105}, 100, false},
		"ended between":                    {100, 110, []uint64{100, 105}, 101, true},
		"newest running":                   {100, 110, []uint64{100, 105}, 105, false},
		"last before xmax":                 {100, 110, []uint64{100, 105}, 109, true},
		"xmax":                             {100, 110, []uint64{100, 105}, 110, false},
		"after xmax":                       {100, 110, nil, 5000, false},
		"nobody runs":                      {110, 110, nil, 109, true},
		"in a later epoch, past":           {7*epoch + 100, 7*epoch + 110, []uint64{7*epoch + 100}, 102, true},
		"in a later epoch, running":        {7*epoch + 100, 7*epoch + 110, []uint64{7*epoch + 100}, 100, false},
		"before the wraparound, past":      {epoch - 5, epoch + 10, []uint64{epoch - 5}, 1<<32 - 2, true},
		"before the wraparound, running":   {epoch - 5, epoch + 10, []uint64{epoch - 5}, 1<<32 - 5, false},
		"before the wraparound, long ago":  {epoch + 5, epoch + 10, nil, 1<<32 - 5, true},
		"after the wraparound, past":       {epoch - 5, epoch + 10, []uint64{epoch - 5}, 9, true},
		"after the wraparound, running":    {epoch - 5, epoch + 10, []uint64{epoch - 5, epoch + 9}, 9, false},
		"after the wraparound, to come":    {epoch - 5, epoch - 1, nil, 3, false},
		"xmax is the first after it":       {epoch - 5, epoch, []uint64{epoch - 5}, 1<<32 - 1, true},
		"xmax itself, first after it":      {epoch - 5, epoch, nil, 0, false},
		"nearly half the ids before":       {9 * epoch, 9 * epoch, nil, 1<<31 + 1, true},
		"nearly half the ids to come":      {9 * epoch, 9 * epoch, nil, 1<<31 - 1, false},
		"the first transactions, all past": {10, 10, nil, 3, true},
	} {
		s := snapshot{xmin: c.xmin, xmax: c.xmax, running: c.running}
		if got := s.past(c.xid); got != c.want {
			t.Errorf("%s: %d in %+v is past: %t", name, c.xid, s, got)
		}
	}
}

func TestSnapshotDecode(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDB(t)
	ask := pgtest.Connect(t, dsn)
	for range 3 {
		writer := pgtest.Connect(t, dsn)
		pgtest.Exec(t, writer, `begin; select pg_current_xact_id()`)
	}
	// Only those are listed that began before one that has ended.
	pgtest.Exec(t, ask, `select pg_current_xact_id()`)
	pgtest.Exec(t, ask, `begin isolation level repeatable read`)
	var s snapshot
	for range 2 { // the second time into the memory of the first
		var raw []byte
		if err := ask.QueryRow(t.Context(), `select pg_snapshot_send(pg_current_snapshot())`).Scan(&raw); err != nil {
			t.Fatal(err)
		}
		if err := s.decode(raw); err != nil {
			t.Fatal(err)
		}
	}
	var text []string
	for _, xid := range s.running {
		text = append(text, fmt.Sprint(xid))
	}
	got := fmt.Sprintf("%d:%d:%s", s.xmin, s.xmax, strings.Join(text, ","))
	if want := pgtest.Value[string](t, ask, `select pg_current_snapshot()::text`); got != want || len(s.running) < 3 {
		t.Errorf("%q, want %q with three or more", got, want)
	}
	whole := binary.BigEndian.AppendUint32(nil, 2)
	whole = append(whole, make([]byte, 32)...)
	for n := range whole {
		if err := s.decode(whole[:n]); err == nil {
			t.Errorf("no error for %d of %d bytes", n, len(whole))
		}
	}
}
