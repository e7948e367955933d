package scenario

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"

	"github.com/outbox-dispatcher/outbox/internal/natsserver"
)

// broker is a private NATS server with JetStream on files, which can go away and come
// back.
type broker struct {
	dir    string
	port   int
	server *natsserver.Server // nil while it is away
}

// startBroker starts one. The caller must close it.
func startBroker() (*broker, error) {
	dir, err := os.MkdirTemp("", "outbox-bench-nats-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for JetStream: %w", err)
	}
	b := &broker{dir: dir}
	if err := b.start(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	at, err := url.Parse(b.server.URL())
	if err == nil {
		b.port, err = strconv.Atoi(at.Port())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the port of NATS: %w", err), b.close())
	}
	return b, nil
}

// start starts the server, on the port that it had before.
func (b *broker) start() (err error) {
	b.server, err = natsserver.Start(natsserver.Options{StoreDir: b.dir, Port: b.port})
	return err
}

// stop ends the server. What it has stored stays.
func (b *broker) stop() {
	if b.server != nil {
		b.server.Stop()
		b.server = nil
	}
}

func (b *broker) close() error {
	b.stop()
	return os.RemoveAll(b.dir)
}
