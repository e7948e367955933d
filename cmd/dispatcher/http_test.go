package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// fixedHealth is a dispatcher that is always in the same state.
type fixedHealth dispatcher.Health

func (h fixedHealth) Health() dispatcher.Health { return dispatcher.Health(h) }

func healthy() fixedHealth {
	return fixedHealth{Running: true, Wake: dispatcher.WakeHealth{
		Source: dispatcher.WakeNotify, Healthy: true, Since: time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC),
	}, Sources: []dispatcher.WakeHealth{{Source: dispatcher.WakeNotify, Healthy: true}}}
}

// running is the stopping of a process that was not asked to stop.
func running() bool { return false }

func testApp() *app { return &app{stdout: io.Discard, stderr: io.Discard, redact: &redactor{}} }

func get(t *testing.T, h *handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadyz(t *testing.T) {
	since := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	for name, c := range map[string]struct {
		change func(*fixedHealth)
		ready  bool
		want   string
	}{
		"healthy":       {func(*fixedHealth) {}, true, `"since":"2026-01-02T03:04:05.678Z"`},
		"starting":      {func(h *fixedHealth) { h.Running = false }, false, `"running":false`},
		"database":      {func(h *fixedHealth) { h.Database = errors.New("connection\n\trefused") }, false, `"error":"connection; refused"`},
		"degraded wake": {func(h *fixedHealth) { h.Wake.Healthy, h.Wake.Detail = false, "no canary" }, true, `"detail":"no canary"`},
		"remark":        {func(h *fixedHealth) { h.Wake.Detail = "older trigger" }, true, `"healthy":true,"detail":"older trigger","masked":false`},
		"masked":        {func(h *fixedHealth) { h.Wake.Masked = true }, true, `"healthy":true,"masked":true,"since"`},
		"one source":    {func(*fixedHealth) {}, true, `"masked":false,"since":"2026-01-02T03:04:05.678Z"},"circuit"`},
		"two sources": {func(h *fixedHealth) {
			h.Sources = append(h.Sources, dispatcher.WakeHealth{Source: dispatcher.WakeWAL, Detail: "stands by", Since: since})
		}, true, `"sources":[{"source":"notify","healthy":true},{"source":"wal","healthy":false,"detail":"stands by","since":"2026-05-06T07:08:09Z"}]`},
		"open circuit": {func(h *fixedHealth) {
			h.Circuit = dispatcher.CircuitHealth{Open: true, Cause: errors.New("gone"), Since: since}
		}, false, `"cause":"gone","since":"2026-05-06T07:08:09Z"`},
		"stream error": {func(h *fixedHealth) {
			h.Stream = []dispatcher.Finding{{Severity: "error", Check: "exists", Text: "no stream"}}
		}, false, `"text":"no stream"`},
		"stream warning": {func(h *fixedHealth) {
			h.Stream = []dispatcher.Finding{{Severity: "warning", Check: "window", Stream: "S", Text: "short"}}
		}, true, `"stream":"S"`},
		"no stream finding":    {func(*fixedHealth) {}, true, `"stream":[]`},
		"a secret in an error": {func(h *fixedHealth) { h.Database = errors.New("canary-password") }, false, `"error":"[redacted]"`},
	} {
		t.Run(name, func(t *testing.T) {
			health := healthy()
			c.change(&health)
			a := testApp()
			a.redact.add("canary-password")
			code, body := get(t, newHandler(a, health, newRegistry(), running), "/readyz")
			if want := map[bool]int{true: 200, false: 503}[c.ready]; code != want {
				t.Errorf("status %d, want %d", code, want)
			}
			var r readiness
			if err := json.Unmarshal([]byte(body), &r); err != nil || r.Ready != c.ready {
				t.Errorf("ready is %t (%v) in %s", r.Ready, err, body)
			}
			if compact := strings.Join(strings.Fields(body), ""); !strings.Contains(compact, strings.Join(strings.Fields(c.want), "")) {
				t.Errorf("%s is not in %s", c.want, body)
			}
		})
	}
}

func TestReadyzWhileStopping(t *testing.T) {
	h := newHandler(testApp(), healthy(), newRegistry(), func() bool { return true })
	if code, body := get(t, h, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"stopping": true`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get(t, h, "/livez"); code != http.StatusOK {
		t.Errorf("a stopping process is not alive: %d", code)
	}
}

func TestLivezAsksNobody(t *testing.T) {
	down := fixedHealth{Database: errors.New("down"), Circuit: dispatcher.CircuitHealth{Open: true}}
	for _, path := range []string{"/livez", "/healthz"} {
		if code, body := get(t, newHandler(testApp(), down, newRegistry(), running), path); code != 200 || body != "ok\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func TestOnlyGet(t *testing.T) {
	h := newHandler(testApp(), healthy(), newRegistry(), running)
	w := httptest.NewRecorder()
	h.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/readyz", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST answered %d", w.Code)
	}
	if code, _ := get(t, h, "/"); code != http.StatusNotFound {
		t.Errorf("GET / answered %d", code)
	}
}

// served serves health on a port of its own until the test ends.
func served(t *testing.T, health healthSource) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a listener of a test
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	h := newHandler(testApp(), health, newRegistry(), running)
	go func() { done <- h.serve(ctx, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

func TestHealthcheck(t *testing.T) {
	sick := healthy()
	sick.Circuit = dispatcher.CircuitHealth{Open: true, Cause: errors.New("no broker")}
	starting := healthy()
	starting.Running = false
	closed, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a port that nobody serves
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for name, c := range map[string]struct {
		addr string
		args []string
		code int
		want string
	}{
		"ready":          {served(t, healthy()), nil, 0, "ready\n"},
		"not ready":      {served(t, sick), nil, 1, "dispatcher: not ready: broker: no broker\n"},
		"starting":       {served(t, starting), nil, 1, "dispatcher: not ready: starting\n"},
		"alive":          {served(t, sick), []string{"--check=live"}, 0, "alive\n"},
		"nobody":         {closed.Addr().String(), nil, 1, "connection refused"},
		"off":            {"off", nil, 2, "--http is off"},
		"not an address": {"8080", nil, 2, "HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			code := run(t.Context(), append([]string{"healthcheck", "--http", c.addr}, c.args...), nil, &out, &out)
			if code != c.code || !strings.Contains(out.String(), c.want) || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("exit code %d, want %d; it says %q, want %q in one line", code, c.code, out.String(), c.want)
			}
		})
	}
}

func TestDialAddress(t *testing.T) {
	for listen, want := range map[string]string{
		":8080":          "127.0.0.1:8080",
		"0.0.0.0:8080":   "127.0.0.1:8080",
		"[::]:8080":      "[::1]:8080",
		"10.1.2.3:80":    "10.1.2.3:80",
		"localhost:8080": "localhost:8080",
	} {
		got, err := dialAddress(listen)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", listen, err, diff)
		}
	}
}
