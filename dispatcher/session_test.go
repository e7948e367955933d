package dispatcher

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Whatever the role's settings are, tasks leave: at once, by a look at the whole
// table, and at their time.
func TestOddSessionSettings(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pgx.ConnConfig){
		"read only by default": func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_read_only"] = "on" },
		"text and German dates": func(c *pgx.ConnConfig) {
			c.DefaultQueryExecMode = pgx.QueryExecModeExec
			c.RuntimeParams["datestyle"], c.RuntimeParams["intervalstyle"] = "German", "sql_standard"
		},
		"simple protocol": func(c *pgx.ConnConfig) {
			c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			c.RuntimeParams["timezone"] = "Asia/Kathmandu"
		},
		"serializable": func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_isolation"] = "serializable" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			d := r.make(func(c *Config) {
				cfg := c.Pool.Config()
				cfg.AfterConnect = nil // as if not tuned
				change(cfg.ConnConfig)
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				c.Pool, c.Listen = pool, c.Pool.Config().ConnConfig
			})
			d.eager = true
			run := r.run(d)
			eventually(t, "wakes arrive", healthyWake(run))
			r.exec(`insert into outbox (kind, payload, send_after) values ('later', '{}', now() + interval '300 ms')`)
			for range 5 {
				r.insert("now", `{}`)
			}
			r.exec(`insert into outbox (kind, payload, send_after) values ('old', '{}', now() - interval '1 hour')`)
			begun := time.Now()
			r.awaitSettled()
			if h := run.Health(); h.Database != nil {
				t.Errorf("after %v: %v", time.Since(begun), h.Database)
			}
		})
	}
}
