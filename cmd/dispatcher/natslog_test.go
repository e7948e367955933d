package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// Each reason is logged once in an outage, and anew in the next.
func TestNATSLog(t *testing.T) {
	var log bytes.Buffer
	o := nats.GetDefaultOptions()
	for _, opt := range natsLog(slog.New(slog.NewTextHandler(&log, nil))) {
		if err := opt(&o); err != nil {
			t.Fatal(err)
		}
	}
	nc := &nats.Conn{}
	count := func(text string, want int) {
		t.Helper()
		if got := strings.Count(log.String(), text); got != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, log.String())
		}
	}
	outage := func() {
		o.ReconnectErrCB(nc, nats.ErrNoServers)
		for i := range 100 {
			o.ReconnectErrCB(nc, errors.New("refused"))
			o.ReconnectErrCB(nc, fmt.Errorf("reset from port %d", i))
		}
	}
	outage()
	count("refused", 1)
	count("cannot connect to NATS", maxReasons)
	count(nats.ErrNoServers.Error(), 0)
	o.ReconnectedCB(nc)
	count("connected to NATS", 1)
	outage()
	count("refused", 2)
	o.DisconnectedErrCB(nc, nil)
	count("is lost", 0)
	o.DisconnectedErrCB(nc, errors.New("eof"))
	count("is lost", 1)
}
