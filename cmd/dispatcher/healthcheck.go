package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// healthcheckCmd is "dispatcher healthcheck": an image without a shell has no
// curl to ask with.
type healthcheckCmd struct {
	httpFlags
	Check   string        `noenv:"" enum:"ready,live" default:"ready" help:"ready: can tasks flow? live: does the process answer?"`
	Timeout time.Duration `noenv:"" default:"3s" range:"10ms..1m" help:"How long to wait for the answer."`
}

// Run asks and prints one line.
func (c *healthcheckCmd) Run(ctx context.Context, a *app) error {
	if !c.on() {
		return usageError{errors.New("--http is off: nothing to ask; use the address that the dispatcher serves")}
	}
	if err := checkAddress(a, c.HTTP); err != nil {
		return err
	}
	addr, err := dialAddress(c.HTTP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/"+c.Check+"z", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	// No proxy: the dispatcher is on this machine.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address a second time
		}
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	if resp.StatusCode == http.StatusOK {
		_, err := fmt.Fprintf(a.stdout, "%s\n", map[string]string{"ready": "ready", "live": "alive"}[c.Check])
		return err
	}
	return fmt.Errorf("not %s: %s", c.Check, reason(resp.Status, body))
}

// dialAddress turns an address to listen on into one to dial.
func dialAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", usageError{fmt.Errorf("--http %q is not HOST:PORT: %w", listen, err)}
	}
	switch ip := net.ParseIP(host); {
	case host == "" || ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// reason makes words of a refused readiness.
func reason(status string, body []byte) string {
	var r readiness
	if json.Unmarshal(body, &r) != nil {
		return status
	}
	var why []string
	if r.Stopping {
		why = append(why, "stopping")
	}
	if !r.Database.OK {
		why = append(why, "database: "+cmp.Or(r.Database.Error, "unavailable"))
	}
	if r.Circuit.Open {
		why = append(why, "broker: "+cmp.Or(r.Circuit.Cause, "unavailable"))
	}
	for _, f := range r.Stream {
		if f.Severity == "error" {
			why = append(why, "stream: "+f.Text)
		}
	}
	if len(why) == 0 && !r.Running {
		why = append(why, "starting")
	}
	return cmp.Or(strings.Join(why, "; "), status)
}
