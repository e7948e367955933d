package dispatcher

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

func TestConfigValidate(t *testing.T) {
	poolConfig, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?pool_max_conns=6")
	if err != nil {
		t.Fatal(err)
	}
	// A pool connects when it is first used.
	pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string // "" means valid
	}{
		"defaults":             {func(*Config) {}, ""},
		"no pool":              {func(c *Config) { c.Pool = nil }, "Pool is required"},
		"no NATS":              {func(c *Config) { c.NATS = nil }, "NATS is required"},
		"small pool":           {func(c *Config) { c.Workers = 5 }, "6 connections at most, 5 workers need 7"},
		"two JetStreams":       {func(c *Config) { c.JetStreamDomain, c.JetStreamAPIPrefix = "a", "b" }, "exclude each other"},
		"long schema":          {func(c *Config) { c.Schema = strings.Repeat("s", 64) }, "at most 63 bytes"},
		"odd schema":           {func(c *Config) { c.Schema = `My "Outbox"-1` }, ""},
		"wildcard prefix":      {func(c *Config) { c.Prefix = "a.*" }, `Prefix "a.*"`},
		"long prefix":          {func(c *Config) { c.Prefix = strings.Repeat("p", 65) }, "1 to 64 bytes"},
		"longest prefix":       {func(c *Config) { c.Prefix = strings.Repeat("p", 64) }, ""},
		"stream with dot":      {func(c *Config) { c.Stream = "A.B" }, `Stream "A.B"`},
		"unknown wake":         {func(c *Config) { c.Wake = "carrier-pigeon" }, `Wake "carrier-pigeon" must be`},
		"negative batch":       {func(c *Config) { c.Batch = -5 }, "Batch must be 1 to 10000, got -5"},
		"huge batch":           {func(c *Config) { c.Batch = 10_001 }, "got 10001"},
		"few bytes":            {func(c *Config) { c.BatchBytes = 10 }, "BatchBytes must be 1024"},
		"too many workers":     {func(c *Config) { c.Workers = 65 }, "Workers must be 1 to 64"},
		"long publish timeout": {func(c *Config) { c.PublishTimeout = 6 * time.Second }, "PublishTimeout must be 100ms to 5s, got 6s"},
		"short sweep":          {func(c *Config) { c.SweepInterval = time.Millisecond }, "SweepInterval must be"},
		"retry max below min":  {func(c *Config) { c.RetryMin, c.RetryMax = time.Minute, time.Second }, "RetryMax must be 1m0s"},
		"large retry min":      {func(c *Config) { c.RetryMin = time.Hour }, ""},
		"negative attempts":    {func(c *Config) { c.MaxAttempts = -1 }, "MaxAttempts must be"},
	} {
		cfg := Config{Pool: pool, NATS: &nats.Conn{}}
		tt.change(&cfg)
		err := cfg.withDefaults().validate()
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got %v, want %q in it", name, err, tt.want)
		}
	}
}
