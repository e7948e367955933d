package main

import (
	"io"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

// The ranges of the flags repeat those that the dispatcher enforces.
func TestRangesAreTheDispatchers(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1 pool_max_conns=80")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	nc, err := nats.Connect("", nats.InProcessServer(natstest.Start(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	accepts := func(name string, v int64) bool {
		cfg := dispatcher.Config{Pool: pool, NATS: nc}
		setByFlag(t, &cfg, name, v)
		_, err := dispatcher.New(cfg)
		return err == nil
	}
	for _, flag := range runFlags(t) {
		limits := flag.Tag.Get("range")
		if limits == "" {
			continue
		}
		lo, hi, err := parseRange(limits, flag.Target.Type())
		if err != nil {
			t.Fatalf("--%s: %v", flag.Name, err)
		}
		// Zero asks New for the default, so go below it there.
		below := lo - 1
		if below == 0 {
			below = -1
		}
		if accepts(flag.Name, below) || !accepts(flag.Name, lo) || !accepts(flag.Name, hi) || accepts(flag.Name, hi+1) {
			t.Errorf("--%s says %s, the dispatcher accepts %d: %t, %d: %t, %d: %t, %d: %t", flag.Name, limits,
				below, accepts(flag.Name, below), lo, accepts(flag.Name, lo), hi, accepts(flag.Name, hi), hi+1, accepts(flag.Name, hi+1))
		}
	}
}

// setByFlag sets the field that a flag with a range is for.
func setByFlag(t *testing.T, cfg *dispatcher.Config, name string, v int64) {
	t.Helper()
	numbers := map[string]*int{
		"batch": &cfg.Batch, "batch-bytes": &cfg.BatchBytes, "workers": &cfg.Workers, "max-attempts": &cfg.MaxAttempts,
	}
	durations := map[string]*time.Duration{
		"sweep-interval": &cfg.SweepInterval, "poll-interval": &cfg.PollInterval, "publish-timeout": &cfg.PublishTimeout,
		"drain-timeout": &cfg.DrainTimeout, "retry-min": &cfg.RetryMin, "retry-max": &cfg.RetryMax,
	}
	switch {
	case numbers[name] != nil:
		*numbers[name] = int(v)
	case durations[name] != nil:
		*durations[name] = time.Duration(v)
	default:
		t.Fatalf("--%s has a range and no place in dispatcher.Config", name)
	}
	// Each of the two must not be refused because of the other.
	switch name {
	case "retry-min":
		cfg.RetryMax = 24 * time.Hour
	case "retry-max":
		cfg.RetryMin = min(cfg.RetryMax, time.Millisecond)
	}
}

func runFlags(t *testing.T) []*kong.Flag {
	t.Helper()
	k, err := newParser(&cli{}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range k.Model.Leaves(true) {
		if n.Name == "run" {
			return n.Flags
		}
	}
	t.Fatal("there is no command run")
	return nil
}

// Each setting of the dispatcher must be reachable by a flag, with the same
// default.
func TestDefaultsAreTheDispatchers(t *testing.T) {
	c, _, err := parse(t, nil, "run")
	if err != nil {
		t.Fatal(err)
	}
	r := c.Run
	got := []any{r.Schema, r.Prefix, r.Batch, r.BatchBytes, r.Workers, r.SweepInterval, r.PollInterval, r.PublishTimeout, r.DrainTimeout, r.MaxAttempts, r.RetryMin, r.RetryMax, r.Wake}
	want := []any{
		dispatcher.DefaultSchema, dispatcher.DefaultPrefix, dispatcher.DefaultBatch, dispatcher.DefaultBatchBytes, dispatcher.DefaultWorkers,
		dispatcher.DefaultSweepInterval, dispatcher.DefaultPollInterval, dispatcher.DefaultPublishTimeout, dispatcher.DefaultDrainTimeout,
		dispatcher.DefaultMaxAttempts, dispatcher.DefaultRetryMin, dispatcher.DefaultRetryMax, dispatcher.WakeNotify,
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("default %d is %v, want %v", i, got[i], want[i])
		}
	}
}
