// Package faultproxy is a TCP proxy that tests put between two real programs
// to make the network fail on purpose: go silent, cut, delay, refuse, or stop
// right before a given answer. Nothing in it is random.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
)

// Direction is one of the two directions of a connection.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

const dialTimeout = 10 * time.Second

// Proxy forwards connections to one server. Its methods may be called from
// several goroutines. A new proxy passes everything.
type Proxy struct {
	network, upstream string
	port              *loopback.Port
	pumps             sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while refusing
	closed   bool
	conns    map[*Conn]struct{}
	accepted int
	delay    time.Duration
	gates    [2]chan struct{} // nil: open; closed by Resume
	budgets  [2]*int64        // bytes until the cut; nil: none
	hooks    [2][]*hook
}

// New starts a proxy to upstream: "host:port", or the absolute path of a Unix
// socket. The server need not be there yet. The caller must Close the proxy.
func New(upstream string) (*Proxy, error) {
	network := "tcp"
	if filepath.IsAbs(upstream) {
		network = "unix"
	} else if _, _, err := net.SplitHostPort(upstream); err != nil {
		return nil, fmt.Errorf("start a proxy to %q: want host:port or the absolute path of a Unix socket: %w", upstream, err)
	}
	port, err := loopback.Reserve()
	if err != nil {
		return nil, fmt.Errorf("start a proxy to %s: %w", upstream, err)
	}
	p := &Proxy{network: network, upstream: upstream, port: port, conns: map[*Conn]struct{}{}}
	if err := p.Allow(); err != nil {
		_ = port.Close()
		return nil, err
	}
	return p, nil
}

// Addr returns where clients connect to, "127.0.0.1:port". It never changes.
func (p *Proxy) Addr() string { return p.port.Addr() }

// Port returns the port of Addr.
func (p *Proxy) Port() int { return p.port.Number() }

// Accepted returns how many connections the proxy has accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open returns how many connections are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Refuse makes the kernel refuse new connections, as if no server listened.
// Connections that exist are not affected.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // a listener's close does not fail
		p.listener = nil
	}
}

// Allow ends Refuse.
func (p *Proxy) Allow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("accept connections: the proxy is closed")
	}
	if p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp4", p.Addr()) //nolint:noctx // binding a loopback port does not block
	if err != nil {
		return fmt.Errorf("accept connections to %s: %w", p.upstream, err)
	}
	p.listener = l
	p.pumps.Go(func() { p.serve(l) })
	return nil
}

func (p *Proxy) serve(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // Refuse or Close
		}
		c := &Conn{proxy: p, client: client, done: make(chan struct{})}
		if !p.add(c) {
			abort(client)
			return
		}
		p.pumps.Go(c.run)
	}
}

func (p *Proxy) add(c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.accepted++
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Stall makes the connections, old and new ones, half-open: they stay
// connected, but nothing that is sent in these directions arrives until Resume,
// not even that a side has closed. No direction means both.
func (p *Proxy) Stall(dirs ...Direction) {
	if len(dirs) == 0 {
		dirs = []Direction{ToServer, ToClient}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range dirs {
		if p.gates[d] == nil {
			p.gates[d] = make(chan struct{})
		}
	}
}

// Resume ends Stall in both directions. What was sent meanwhile is delivered.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, gate := range p.gates {
		if gate != nil {
			close(gate)
			p.gates[d] = nil
		}
	}
}

// Delay makes all bytes, in either direction, arrive d after they were sent,
// without changing the throughput. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut resets (RST) all open connections, and returns when they are closed.
func (p *Proxy) Cut() {
	p.mu.Lock()
	conns := make([]*Conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.Cut()
	}
}

// CutAfter lets n more bytes pass in a direction, over all connections, and
// then resets the connection that carried the last of them, once. With n = 0
// the next byte cuts, and does not pass.
func (p *Proxy) CutAfter(dir Direction, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budgets[dir] = &n
}

// spend takes up to n bytes from the budget of a direction: how many may pass,
// and whether the connection is to be cut after them.
func (p *Proxy) spend(dir Direction, n int) (pass int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.budgets[dir]
	if left == nil || int64(n) < *left {
		if left != nil {
			*left -= int64(n)
		}
		return n, false
	}
	p.budgets[dir] = nil
	return int(*left), true
}

// hook is one Before.
type hook struct {
	pattern []byte
	call    func(*Conn)
}

// Before calls call each time that pattern is about to pass in a direction, on
// any connection: everything before it has been forwarded, and its last byte
// has not. The connection's direction stands still until call returns, so call
// can look at the servers, hold the bytes back, [Proxy.Stall] or [Conn.Cut]. A
// call that waits must also give up on [Conn.Done], or Close waits for it. The
// returned function ends the watch. An empty pattern panics.
func (p *Proxy) Before(dir Direction, pattern []byte, call func(*Conn)) (remove func()) {
	if len(pattern) == 0 {
		panic("faultproxy: Before needs a pattern of at least one byte")
	}
	h := &hook{pattern: slices.Clone(pattern), call: call}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Connections read the slice without the lock, so it is never written.
	p.hooks[dir] = append(slices.Clip(p.hooks[dir]), h)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hooks[dir] = slices.DeleteFunc(slices.Clone(p.hooks[dir]), func(o *hook) bool { return o == h })
	}
}

func (p *Proxy) watched(dir Direction) []*hook {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hooks[dir]
}

func (p *Proxy) gate(dir Direction) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates[dir]
}

func (p *Proxy) delayed() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// Close resets all connections, stops listening, and returns when the proxy's
// goroutines have ended. It may be called again.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	p.Cut()
	p.pumps.Wait()
	_ = p.port.Close()
}
