package dispatcher

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// reader turns the rows of one claim into tasks. It keeps their bodies side by
// side in large pieces of memory, because one allocation for each would cost
// as much as reading it.
type reader struct {
	piece []byte
	kind  string
}

// pieceSize is the size of a piece. A body larger than a quarter of it has one
// of its own.
const pieceSize = 64 << 10

func (r *reader) task(rows pgx.Rows) (t Task, err error) {
	// These point into the connection's buffer until the next row.
	var kind, headers, payload, body pgtype.DriverBytes
	var now time.Time // the database's
	if err := rows.Scan(&t.ID, &kind, &headers, &t.Attempt, &t.CreatedAt, &t.sendAfter, &t.size, &payload, &body, &now); err != nil {
		return t, err
	}
	// Most tasks of a claim are of the same kind.
	if string(kind) != r.kind {
		r.kind = string(kind)
	}
	t.Kind = r.kind
	due := t.CreatedAt
	if t.sendAfter.After(due) {
		due = t.sendAfter
	}
	t.Age = now.Sub(due)
	if body == nil {
		body = payload
	}
	t.Body = r.keep(body)
	if headers != nil {
		t.rawHeaders = r.keep(headers)
	}
	t.size = max(t.size, len(t.Body))
	return t, nil
}

// keep copies b. The copy cannot grow into its neighbour.
func (r *reader) keep(b []byte) []byte {
	if len(b) > pieceSize/4 {
		return append([]byte(nil), b...)
	}
	if len(b) > cap(r.piece)-len(r.piece) {
		// The first piece is small: most claims are.
		size := 1 << 10
		if cap(r.piece) > 0 {
			size = pieceSize
		}
		r.piece = make([]byte, 0, max(size, len(b)))
	}
	start := len(r.piece)
	r.piece = append(r.piece, b...)
	return r.piece[start:len(r.piece):len(r.piece)]
}
