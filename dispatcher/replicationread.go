package dispatcher

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// walReader reads the stream of the log and answers it, in one goroutine. Of the
// messages it looks at as little as it can: there are four for each task.
type walReader struct {
	conn   *pgconn.PgConn
	source *Replication
	gate   *gate

	// Of the transaction that is being read, whose commit is known already.
	xid      uint32
	inserted bool
	// rest is set after one that wakes.
	rest bool

	// end is how far the log was read, as far as we know, confirmed what of that the
	// server was told. Until it is told, the server keeps the log.
	end, confirmed pglogrepl.LSN
}

// statusInterval is how often the server is told how far the log was read, if
// there is news. It will be told at once when it asks.
const statusInterval = time.Second

// run returns nil after ctx ended. A server that decodes a huge transaction is silent
// too; a new slot begins after it, so that it is as well to start anew.
func (w *walReader) run(ctx context.Context) error {
	nc := w.conn.Conn()
	// A context for each message would cost a goroutine for each.
	defer context.AfterFunc(ctx, func() { _ = nc.SetReadDeadline(time.Unix(1, 0)) })()
	for silent := time.Duration(0); ; {
		if silent == pingAfter+pingTimeout {
			return fmt.Errorf("no sign of life from the server on the replication connection, which has %v to give one; it may be decoding a huge transaction", pingTimeout)
		}
		if w.end != w.confirmed || silent >= pingAfter {
			if err := w.confirm(ctx, silent == pingAfter); err != nil {
				return err
			}
		}
		_ = nc.SetReadDeadline(time.Now().Add(statusInterval))
		if ctx.Err() != nil {
			return nil
		}
		heard, err := w.readUntilDeadline(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return w.source.explain("read the replication stream", err)
		case heard:
			silent = 0
		default:
			silent += statusInterval
		}
	}
}

// readUntilDeadline reads until that of the connection, and reports whether
// anything came. The server sends each message by itself; to be woken for each
// costs more than all the rest, so after a transaction that wakes it lets some
// come together, for as long as the gate rests too.
func (w *walReader) readUntilDeadline(ctx context.Context) (heard bool, err error) {
	for {
		if w.rest && w.conn.Frontend().ReadBufferLen() == 0 {
			w.rest = false
			sleep(ctx, gateRest)
		}
		msg, err := w.conn.ReceiveMessage(context.Background()) //nolint:contextcheck // the deadline ends it
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return heard, nil
		}
		if err != nil {
			return heard, err
		}
		heard = true
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			err = w.handle(ctx, msg.Data)
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			err = fmt.Errorf("the server ended the stream (%s)", strings.TrimPrefix(fmt.Sprintf("%T", msg), "*pgproto3."))
		}
		if err != nil {
			return heard, err
		}
	}
}

var errMalformed = errors.New("a message that is too short")

// handle takes one message of the stream.
func (w *walReader) handle(ctx context.Context, data []byte) error {
	const header = 1 + 8 + 8 + 8 // type, start, end and time of the data
	switch {
	case len(data) == 0:
		return errMalformed
	case data[0] == pglogrepl.XLogDataByteID:
		if len(data) <= header {
			return errMalformed
		}
		return w.change(data[header:])
	case data[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		w.end = max(w.end, k.ServerWALEnd)
		if k.ReplyRequested {
			return w.confirm(ctx, false)
		}
	}
	return nil
}

// change takes one message of pgoutput, in version 1 of its protocol: that sends a
// transaction after its commit, so the first insert is enough to know.
func (w *walReader) change(data []byte) error {
	switch pglogrepl.MessageType(data[0]) {
	case pglogrepl.MessageTypeBegin:
		if len(data) < 21 {
			return errMalformed
		}
		w.xid, w.inserted = binary.BigEndian.Uint32(data[17:]), false
	case pglogrepl.MessageTypeInsert:
		if !w.inserted {
			w.inserted = true
			w.gate.add(w.xid)
		}
	case pglogrepl.MessageTypeCommit:
		if len(data) < 18 {
			return errMalformed
		}
		w.end = max(w.end, pglogrepl.LSN(binary.BigEndian.Uint64(data[10:])))
		w.rest = w.inserted
	case pglogrepl.MessageTypeMessage:
		msg, err := pglogrepl.Parse(data)
		if err != nil {
			return err
		}
		if m, ok := msg.(*pglogrepl.LogicalDecodingMessage); ok && m.Prefix == w.source.Publication && string(m.Content) == w.source.Canary {
			w.source.OnCanary()
		}
	default: // says nothing about an insert
	}
	return nil
}

// confirm tells the server how far the log was read, so that it keeps no more, and
// may ask for an answer.
func (w *walReader) confirm(ctx context.Context, ask bool) error {
	_ = w.conn.Conn().SetWriteDeadline(time.Now().Add(pingTimeout))
	err := pglogrepl.SendStandbyStatusUpdate(ctx, w.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: w.end, WALFlushPosition: w.end, WALApplyPosition: w.end, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("confirm how far the log was read: %w", err)
	}
	w.confirmed = w.end
	return nil
}
