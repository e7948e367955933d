package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Conn is one connection through a proxy. Its methods may be called from
// several goroutines.
type Conn struct {
	proxy  *Proxy
	client net.Conn

	mu     sync.Mutex
	server net.Conn // nil until dialled
	once   sync.Once
	done   chan struct{}
}

// Done is closed when the connection has been cut or has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Cut resets (RST) the connection on both sides.
func (c *Conn) Cut() { c.finish(abort) }

// finish closes both sides in a given way, unless that has been done.
func (c *Conn) finish(how func(net.Conn)) {
	c.once.Do(func() {
		close(c.done)
		how(c.client)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.server != nil {
			how(c.server)
		}
		c.proxy.remove(c)
	})
}

// abort closes a connection with RST where the kind of socket knows it, so that
// the peer sees an error and not an orderly end.
func abort(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only on a closed connection
	}
	_ = nc.Close()
}

func (c *Conn) run() {
	server, err := c.dial()
	if err != nil {
		c.Cut() // the client sees what a server that went away looks like
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { c.pump(ToServer, c.client, server) })
	pumps.Go(func() { c.pump(ToClient, server, c.client) })
	pumps.Wait()
	c.finish(func(nc net.Conn) { _ = nc.Close() }) // both directions ended in order
}

func (c *Conn) dial() (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	server, err := d.DialContext(context.Background(), c.proxy.network, c.proxy.upstream)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	if c.ended() { // Cut came while there was no server to close yet
		abort(server)
		return nil, net.ErrClosed
	}
	return server, nil
}

func (c *Conn) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// chunk is what one read brought: bytes, or the reason why there are no more.
type chunk struct {
	data []byte
	err  error
	at   time.Time
}

// pump forwards one direction until its end. Reading goes on while a delay
// runs, so a delay does not cost throughput; a stall fills the queue and then
// the sockets, as a dead network does.
func (c *Conn) pump(dir Direction, from, to net.Conn) {
	chunks := make(chan chunk, 256)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { c.read(from, chunks) })
	f := forwarder{conn: c, dir: dir, to: to}
	for {
		var ch chunk
		select {
		case ch = <-chunks:
		case <-c.done:
			return
		}
		if !c.hold(dir, ch.at) {
			return
		}
		if ch.err != nil {
			c.end(ch.err, to)
			return
		}
		if err := f.forward(ch.data); err != nil {
			c.Cut()
			return
		}
	}
}

func (c *Conn) read(from net.Conn, chunks chan<- chunk) {
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		for _, ch := range []chunk{{data: buf[:n]}, {err: err}} {
			if ch.err == nil && len(ch.data) == 0 {
				continue
			}
			ch.at = time.Now()
			select {
			case chunks <- ch:
			case <-c.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// end passes the end of one direction on: an orderly one as such, any other as
// a reset.
func (c *Conn) end(err error, to net.Conn) {
	half, ok := to.(interface{ CloseWrite() error })
	if !errors.Is(err, io.EOF) || !ok || half.CloseWrite() != nil {
		c.Cut()
	}
}

// hold waits until bytes read at the given time may go on. It returns false if
// the connection ends first.
func (c *Conn) hold(dir Direction, at time.Time) bool {
	if d := c.proxy.delayed(); d > 0 {
		timer := time.NewTimer(time.Until(at.Add(d)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	}
	for {
		gate := c.proxy.gate(dir)
		if gate == nil {
			return true
		}
		select {
		case <-gate:
		case <-c.done:
			return false
		}
	}
}

// forwarder writes one direction of a connection, and sees to hooks and cuts.
type forwarder struct {
	conn *Conn
	dir  Direction
	to   net.Conn
	// tail is what passed last, so that a pattern is found across reads.
	tail []byte
}

// errCut ends a direction on purpose.
var errCut = errors.New("cut on purpose")

func (f *forwarder) forward(data []byte) error {
	hooks := f.conn.proxy.watched(f.dir)
	if len(hooks) == 0 {
		f.tail = f.tail[:0]
		return f.write(data)
	}
	window := append(f.tail, data...)
	sent := len(f.tail)
	// A match that ended before the new bytes was found when they passed.
	from := make([]int, len(hooks))
	longest := 0
	for i, h := range hooks {
		from[i] = max(0, sent-len(h.pattern)+1)
		longest = max(longest, len(h.pattern))
	}
	for {
		i, at := next(window, hooks, from)
		if i < 0 {
			break
		}
		from[i] = at + 1
		if at > sent {
			if err := f.write(window[sent:at]); err != nil {
				return err
			}
			sent = at
		}
		hooks[i].call(f.conn)
		// The call may have stalled the direction or cut the connection.
		if !f.conn.hold(f.dir, time.Time{}) || f.conn.ended() {
			return errCut
		}
	}
	if err := f.write(window[sent:]); err != nil {
		return err
	}
	f.tail = bytes.Clone(window[max(0, len(window)-longest+1):])
	return nil
}

// next finds the hook whose pattern comes first in the window.
func next(window []byte, hooks []*hook, from []int) (index, at int) {
	index = -1
	for i, h := range hooks {
		if n := bytes.Index(window[from[i]:], h.pattern); n >= 0 && (index < 0 || from[i]+n < at) {
			index, at = i, from[i]+n
		}
	}
	return index, at
}

func (f *forwarder) write(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	pass, cut := f.conn.proxy.spend(f.dir, len(data))
	if _, err := f.to.Write(data[:pass]); err != nil {
		return err
	}
	if cut {
		return errCut
	}
	return nil
}
