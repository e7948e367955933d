package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// defaultHTTP is reachable from this machine only: health and metrics tell a
// stranger more than they should.
const defaultHTTP = "127.0.0.1:8080"

// httpFlags say where health and metrics are served.
type httpFlags struct {
	HTTP string `name:"http" group:"Operation" default:"${http}" help:"Address of /livez, /readyz and /metrics; :8080 for all interfaces, \"off\" for none."`
}

// on reports whether anything is served.
func (f *httpFlags) on() bool { return f.HTTP != "" && f.HTTP != "off" }

// healthSource is the part of a dispatcher that tells how it is.
type healthSource interface{ Health() dispatcher.Health }

// readiness is the body of GET /readyz. Its names are a contract.
type readiness struct {
	Ready bool `json:"ready"`
	// Running is set once the schema was found.
	Running bool `json:"running"`
	// Stopping is set after a signal.
	Stopping bool             `json:"stopping"`
	Database databaseState    `json:"database"`
	Wake     wakeState        `json:"wake"`
	Circuit  circuitState     `json:"circuit"`
	Stream   []streamFindings `json:"stream"`
}

type databaseState struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

type wakeState struct {
	Source  string `json:"source"`
	Healthy bool   `json:"healthy"`
	// Detail says why it is not healthy, or what could be better.
	Detail string `json:"detail,omitempty"`
	// Masked is set while this process polls under load and has masked the
	// notifications.
	Masked bool       `json:"masked"`
	Since  *time.Time `json:"since,omitempty"`
	// Sources tells of each source by itself, if there are several.
	Sources []wakeSource `json:"sources,omitempty"`
}

type wakeSource struct {
	Source  string     `json:"source"`
	Healthy bool       `json:"healthy"`
	Detail  string     `json:"detail,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
}

type circuitState struct {
	Open  bool       `json:"open"`
	Cause string     `json:"cause,omitempty"`
	Since *time.Time `json:"since,omitempty"`
}

type streamFindings struct {
	Severity string `json:"severity"`
	Check    string `json:"check"`
	Stream   string `json:"stream,omitempty"`
	Text     string `json:"text"`
}

func readinessOf(h dispatcher.Health, stopping bool) readiness {
	r := readiness{
		Ready:    h.Ready() && !stopping,
		Running:  h.Running,
		Stopping: stopping,
		Database: databaseState{OK: h.Database == nil, Error: errorText(h.Database)},
		Wake:     wakeState{Source: string(h.Wake.Source), Healthy: h.Wake.Healthy, Detail: h.Wake.Detail, Masked: h.Wake.Masked, Since: since(h.Wake.Since)},
		Circuit:  circuitState{Open: h.Circuit.Open, Cause: errorText(h.Circuit.Cause), Since: since(h.Circuit.Since)},
		Stream:   make([]streamFindings, 0, len(h.Stream)),
	}
	for _, f := range h.Stream {
		r.Stream = append(r.Stream, streamFindings{string(f.Severity), f.Check, f.Stream, f.Text})
	}
	if len(h.Sources) > 1 {
		for _, s := range h.Sources {
			r.Wake.Sources = append(r.Wake.Sources, wakeSource{string(s.Source), s.Healthy, s.Detail, since(s.Since)})
		}
	}
	return r
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err)
}

func since(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

// handler serves health and metrics. Once stopping, it is not ready while it
// still drains.
type handler struct {
	health   healthSource
	stopping func() bool
	mux      *http.ServeMux
}

// newHandler makes a handler; stopping reports whether the process was asked to stop.
func newHandler(a *app, health healthSource, reg *prometheus.Registry, stopping func() bool) *handler {
	h := &handler{health: health, stopping: stopping, mux: http.NewServeMux()}
	live := func(w http.ResponseWriter, _ *http.Request) {
		// Asking takes the dispatcher's locks: a process stuck in one does
		// not answer, and is restarted. What it says about others does not
		// matter here.
		h.health.Health()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	}
	h.mux.HandleFunc("GET /livez", live)
	h.mux.HandleFunc("GET /healthz", live)
	h.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := readinessOf(h.health.Health(), h.stopping())
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !r.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = writeJSON(a.redact.writer(w), r)
	})
	h.mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		// A collector that fails must not hide the others.
		ErrorHandling:     promhttp.ContinueOnError,
		EnableOpenMetrics: true,
		Registry:          reg,
	}))
	return h
}

// writeJSON writes v as one indented document, in one Write.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// checkAddress tells somebody who gave a port only how to write it.
func checkAddress(a *app, addr string) error {
	if _, err := strconv.ParseUint(addr, 10, 16); err == nil {
		return usageError{fmt.Errorf("%s must be HOST:PORT, got %q: write :%s for all interfaces, or 127.0.0.1:%s for this machine", a.flag("http"), addr, addr, addr)}
	}
	return nil
}

// listen opens the address of the flag.
func (f *httpFlags) listen(ctx context.Context, a *app) (net.Listener, error) {
	if err := checkAddress(a, f.HTTP); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", f.HTTP)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w: free the address, choose another HOST:PORT, or switch it off with --http=off", a.flag("http"), err)}
	}
	return l, nil
}

// serve answers on l until ctx ends, then for as long as requests in hand
// take, at most one second.
func (h *handler) serve(ctx context.Context, l net.Listener, logger *slog.Logger) error {
	s := &http.Server{
		Handler:           h.mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.Shutdown(short) != nil {
			_ = s.Close()
		}
	})
	err := s.Serve(l)
	if !stop() {
		<-done
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve http on %s: %w", l.Addr(), err)
}
