package dispatcher

import (
	"time"

	"github.com/nats-io/nats.go"
)

// NATSOptions returns the client options that the dispatcher's promises need;
// put them after your own. The client's defaults are made for other
// programs: they give up reconnecting after 60 tries, notice a dead peer after
// minutes, and keep messages published while disconnected to deliver them
// later, when the dispatcher has long resent them.
func NATSOptions() []nats.Option {
	return []nats.Option{
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(2 * time.Second),
		// A write to a server that no longer reads holds the connection's lock,
		// and with it everybody who asks for its state, for a minute by default.
		nats.FlusherTimeout(time.Second),
	}
}
