package dispatcher

import (
	"context"
	"testing"
)

func TestStartAndStopAHundredTimes(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	cfg := r.config()
	cfg.Pool, cfg.NATS = r.pool(), r.connect()
	for range 100 {
		r.insert("k", `{}`)
		d, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		r.awaitSettled()
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n := query[int](r, `select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'`); n > 1 {
		t.Errorf("%d listeners are left", n)
	}
}
