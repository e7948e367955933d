package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/faultproxy"
)

// serverFaults happen to PostgreSQL and NATS. They run on the test's goroutine.
var serverFaults = []fault{
	{name: "postgres stop", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.check(w.pg.Stop())
		wait(ctx, hold)
		w.check(w.pg.Start(w.t.Context()))
		return true
	}},
	{name: "postgres immediate stop", weight: 4, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.check(w.pg.Kill())
		w.history.Crashed(time.Now())
		wait(ctx, hold)
		w.check(w.pg.Start(w.t.Context()))
		return true
	}},
	{name: "postgres backend kill -9", weight: 3, run: func(ctx context.Context, w *world, r *rand.Rand, _ time.Duration) bool {
		pids := w.backends(ctx, `select pid from pg_stat_activity where backend_type in ('client backend', 'walsender')`)
		if len(pids) == 0 {
			return false
		}
		ok := syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL) == nil
		// The postmaster ends all others and recovers.
		w.history.Crashed(time.Now())
		return ok
	}},
	{name: "postgres freeze", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		pids := family(w.pg.PID())
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		wait(ctx, hold)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return len(pids) > 1
	}},
	{name: "nats kill -9", weight: 5, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.broker.Kill(w.t)
		wait(ctx, hold)
		w.broker.Restart(w.t)
		return true
	}},
	{name: "nats stop", weight: 3, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.broker.Stop(w.t)
		wait(ctx, hold)
		w.broker.Restart(w.t)
		return true
	}},
	{name: "nats freeze", weight: 4, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.broker.Freeze(w.t)
		wait(ctx, hold)
		w.broker.Thaw(w.t)
		return true
	}},
	{name: "both immediate stop", weight: 2, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		w.broker.Kill(w.t)
		w.check(w.pg.Kill())
		w.history.Crashed(time.Now())
		wait(ctx, hold)
		w.check(w.pg.Start(w.t.Context()))
		w.broker.Restart(w.t)
		return true
	}},
	{name: "stream full", weight: 6, mode: refusing, run: func(ctx context.Context, w *world, _ *rand.Rand, hold time.Duration) bool {
		if !w.limitStream(ctx, true) {
			return false
		}
		wait(ctx, hold)
		eventually(w.t, "the stream has room again", func() error {
			if !w.limitStream(w.t.Context(), false) {
				return fmt.Errorf("the limit could not be lifted")
			}
			return nil
		})
		return true
	}},
}

// limitStream makes the stream full, or gives it room.
func (w *world) limitStream(ctx context.Context, full bool) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := w.js.Stream(ctx, streamName)
	if err != nil {
		return false
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = -1
	if full {
		cfg.MaxMsgs = int64(max(s.CachedInfo().State.Msgs, 1))
	}
	_, err = w.js.UpdateStream(ctx, cfg)
	return err == nil
}

func (w *world) check(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

// family returns a process and its children.
func family(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	pids := []int{pid}
	for field := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// linkFaults happen to dispatchers and to the network.
var linkFaults = []fault{
	{name: "dispatcher kill -9", weight: 6, run: func(_ context.Context, w *world, r *rand.Rand, _ time.Duration) bool {
		n := w.node(r)
		n.send(syscall.SIGKILL)
		<-n.d.done
		n.start()
		return true
	}},
	{name: "dispatcher SIGTERM", weight: 4, run: func(_ context.Context, w *world, r *rand.Rand, _ time.Duration) bool {
		n := w.node(r)
		n.terminate()
		n.start()
		return true
	}},
	{name: "dispatcher freeze", weight: 6, run: func(ctx context.Context, w *world, r *rand.Rand, hold time.Duration) bool {
		n := w.node(r)
		n.send(syscall.SIGSTOP)
		// Often long enough for the server to give its rows to others.
		wait(ctx, 2*hold)
		n.send(syscall.SIGCONT)
		return true
	}},
	{name: "link stall", weight: 6, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, _ *rand.Rand, hold time.Duration) {
		p.Stall()
		wait(ctx, hold)
		p.Resume()
	})},
	{name: "link stall one direction", weight: 8, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, r *rand.Rand, hold time.Duration) {
		p.Stall(direction(r))
		wait(ctx, hold)
		p.Resume()
	})},
	{name: "link half-open then cut", weight: 6, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, _ *rand.Rand, hold time.Duration) {
		p.Stall()
		wait(ctx, hold)
		p.Cut()
		p.Resume()
	})},
	{name: "link cut", weight: 6, run: onLink(func(_ context.Context, p *faultproxy.Proxy, _ *rand.Rand, _ time.Duration) { p.Cut() })},
	{name: "link cut after n bytes", weight: 10, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, r *rand.Rand, hold time.Duration) {
		p.CutAfter(direction(r), r.Int64N(30_000))
		wait(ctx, hold)
	})},
	{name: "link refused", weight: 3, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, _ *rand.Rand, hold time.Duration) {
		p.Refuse()
		p.Cut()
		wait(ctx, hold)
		for p.Allow() != nil {
			wait(context.WithoutCancel(ctx), 10*time.Millisecond) // somebody has the port for a moment
		}
	})},
	{name: "link delay", weight: 4, run: onLink(func(ctx context.Context, p *faultproxy.Proxy, r *rand.Rand, hold time.Duration) {
		p.Delay(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		wait(ctx, hold)
		p.Delay(0)
	})},
}

func direction(r *rand.Rand) faultproxy.Direction {
	if r.IntN(2) == 0 {
		return faultproxy.ToServer
	}
	return faultproxy.ToClient
}

// onLink applies a fault to one way through the network, or to all ways to one
// of the servers.
func onLink(do func(context.Context, *faultproxy.Proxy, *rand.Rand, time.Duration)) func(context.Context, *world, *rand.Rand, time.Duration) bool {
	return func(ctx context.Context, w *world, r *rand.Rand, hold time.Duration) bool {
		switch r.IntN(5) {
		case 0, 1:
			do(ctx, w.node(r).pg, r, hold)
		case 2, 3:
			do(ctx, w.node(r).nats, r, hold)
		case 4:
			do(ctx, w.entry, r, hold)
		}
		return true
	}
}

func (w *world) node(r *rand.Rand) *node { return w.nodes[r.IntN(len(w.nodes))] }
