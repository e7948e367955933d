// Package loopback keeps a TCP port of 127.0.0.1 for one owner, also while
// nothing listens on it. A server that is stopped and started again, or a
// proxy that refuses connections for a while, would otherwise lose its port to
// any outgoing connection of the machine that the kernel happens to give it to.
package loopback

import (
	"net"
	"strconv"
)

// Host is the only address this package deals with.
const Host = "127.0.0.1"

// Port is a reserved port. Its owner may listen on Addr, stop, and listen
// again as often as it likes, in this process or in another. It may be used
// from several goroutines, but for Close.
type Port struct {
	number  int
	release func() error
}

// Number returns the port's number, 1 to 65535.
func (p *Port) Number() int { return p.number }

// Addr returns "127.0.0.1:number".
func (p *Port) Addr() string { return net.JoinHostPort(Host, strconv.Itoa(p.number)) }

// Close gives the port up. A listener on it is not affected. The second and
// any further call does nothing.
func (p *Port) Close() error {
	if p.release == nil {
		return nil
	}
	release := p.release
	p.release = nil
	return release()
}
