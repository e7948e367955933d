package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/outbox-dispatcher/outbox/bench/internal/scenario"
)

// river is a job queue on PostgreSQL with a worker that publishes. Its producers notify
// at most so often, and its clients fetch at most once per cooldown.
func river(name string, tuned bool) scenario.Peer {
	cfg, title := riverqueue.Config{}, "its defaults, 100 workers"
	workers := 100
	if tuned {
		cfg.FetchCooldown, workers = 5*time.Millisecond, 500
		title = fmt.Sprintf("FetchCooldown %v, %d workers", cfg.FetchCooldown, workers)
	}
	return scenario.Peer{
		Name: name, Title: "River " + version("github.com/riverqueue/river") + ", " + title, Defaults: !tuned,
		Open: func(ctx context.Context, at scenario.Site) (scenario.Contender, error) {
			s, err := open(ctx, at, 20)
			if err != nil {
				return nil, err
			}
			q := &queue{site: s}
			return q, errors.Join(q.prepare(ctx, cfg, workers))
		},
	}
}

// queue is River on a site.
type queue struct {
	*site
	client *riverqueue.Client[pgx.Tx]
}

// args are those of a job.
type args struct{ scenario.Payload }

// Kind names the job, for River.
func (args) Kind() string { return "bench_task" }

// worker publishes a job's payload.
type worker struct {
	riverqueue.WorkerDefaults[args]
	site *site
}

// Work is called by River for each job.
func (w *worker) Work(ctx context.Context, job *riverqueue.Job[args]) error {
	text, err := json.Marshal(job.Args.Payload)
	if err != nil {
		return err
	}
	return w.site.publish(ctx, job.ID, text)
}

func (q *queue) prepare(ctx context.Context, cfg riverqueue.Config, workers int) error {
	driver := riverpgxv5.New(q.pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: q.Schema, Logger: quiet})
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	cfg.Schema, cfg.Logger, cfg.Workers = q.Schema, quiet, riverqueue.NewWorkers()
	cfg.Queues = map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: workers}}
	riverqueue.AddWorker(cfg.Workers, &worker{site: q.site})
	if q.client, err = riverqueue.NewClient(driver, &cfg); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

// Producer implements [scenario.Contender].
func (q *queue) Producer(ctx context.Context) (scenario.Producer, error) {
	return q.connect(ctx, func(ctx context.Context, tx pgx.Tx, payload scenario.Payload) error {
		_, err := q.client.InsertTx(ctx, tx, args{payload}, nil)
		return err
	})
}

// Fill implements [scenario.Contender].
func (q *queue) Fill(ctx context.Context, n int) error {
	const batch = 10_000
	for from := 0; from < n; from += batch {
		var jobs []riverqueue.InsertManyParams
		for i := range min(batch, n-from) {
			jobs = append(jobs, riverqueue.InsertManyParams{Args: args{scenario.NewPayload(int64(from + i + 1))}})
		}
		if _, err := q.client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert %d jobs: %w", n, err)
		}
	}
	return nil
}

// Run implements [scenario.Contender].
func (q *queue) Run(ctx context.Context) error {
	// Not ctx, whose end would let nothing finish.
	if err := q.client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := q.client.Stop(stopping); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
