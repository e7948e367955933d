package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

// parse is the program up to the point where the command would run.
func parse(t *testing.T, vars map[string]string, args ...string) (*cli, *app, error) {
	t.Helper()
	var c cli
	k, err := newParser(&c, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{stdout: io.Discard, stderr: io.Discard, redact: &redactor{}}
	_, err = a.parse(k, args, func(name string) string { return vars[name] })
	return &c, a, err
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPrecedence(t *testing.T) {
	batch := func(c *cli) any { return c.Run.Batch }
	stream := func(c *cli) any { return c.Run.CreateStream }
	natsURL := func(c *cli) any { return c.Run.NATSURL }
	database := func(c *cli) any { return c.Run.DatabaseURL + "|" + c.Run.DatabaseURLFile }
	type vars = map[string]string
	for name, c := range map[string]struct {
		vars vars
		args string
		get  func(*cli) any
		want any
	}{
		"default":                              {nil, "", batch, dispatcher.DefaultBatch},
		"variable over default":                {vars{"OUTBOX_BATCH": "7"}, "", batch, 7},
		"flag over variable":                   {vars{"OUTBOX_BATCH": "7"}, "--batch=8", batch, 8},
		"flag over a bad variable":             {vars{"OUTBOX_BATCH": "seven"}, "--batch=8", batch, 8},
		"an empty variable is not set":         {vars{"OUTBOX_BATCH": ""}, "", batch, dispatcher.DefaultBatch},
		"bool variable":                        {vars{"OUTBOX_CREATE_STREAM": "true"}, "", stream, true},
		"bool flag over variable":              {vars{"OUTBOX_CREATE_STREAM": "true"}, "--create-stream=false", stream, false},
		"second name":                          {vars{"NATS_URL": "nats://b"}, "", natsURL, "nats://b"},
		"own name over second name":            {vars{"NATS_URL": "nats://b", "OUTBOX_NATS_URL": "nats://a"}, "", natsURL, "nats://a"},
		"flag over both":                       {vars{"NATS_URL": "nats://b", "OUTBOX_NATS_URL": "nats://a"}, "--nats-url=nats://f", natsURL, "nats://f"},
		"file":                                 {vars{"OUTBOX_DATABASE_URL_FILE": "f"}, "", database, "|f"},
		"own file over second name":            {vars{"OUTBOX_DATABASE_URL_FILE": "f", "DATABASE_URL": "u"}, "", database, "|f"},
		"file flag over variable":              {vars{"OUTBOX_DATABASE_URL": "u"}, "--database-url-file=f", database, "|f"},
		"flag over file variable":              {vars{"OUTBOX_DATABASE_URL_FILE": "f"}, "--database-url=u", database, "u|"},
		"variables of other commands are idle": {vars{"OUTBOX_TIMEOUT": "never", "OUTBOX_JSON": "perhaps"}, "", batch, dispatcher.DefaultBatch},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := parse(t, c.vars, append([]string{"run"}, strings.Fields(c.args)...)...)
			if err != nil {
				t.Fatal(err)
			}
			if v := c.get(got); v != c.want {
				t.Errorf("got %v, want %v", v, c.want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	type vars = map[string]string
	for name, c := range map[string]struct {
		vars vars
		args string
		want []string
	}{
		"range names flag, range, value, default": {nil, "run --batch=0", []string{"--batch must be 1 to 10000, got 0", "default is 500"}},
		"range names the variable":                {vars{"OUTBOX_RETRY_MIN": "0s"}, "run", []string{"--retry-min (from OUTBOX_RETRY_MIN) must be 1ms to 24h, got 0s"}},
		"all that is wrong is told":               {nil, "run --batch=0 --workers=65", []string{"--batch", "--workers must be 1 to 64, got 65"}},
		"not a number":                            {vars{"OUTBOX_BATCH": "many"}, "run", []string{"--batch", `"many"`, "from OUTBOX_BATCH"}},
		"not a duration":                          {nil, "run --retry-min=5", []string{"--retry-min", "5"}},
		"not one of the choices":                  {nil, "run --wake=wal", []string{"--wake", `"notify","poll"`, `"wal"`}},
		"misspelt flag":                           {nil, "run --bacth=1", []string{`did you mean "--batch"`}},
		"misspelt command":                        {nil, "rnu", []string{`did you mean "run"`}},
		"no command":                              {nil, "", []string{`"run"`, `"migrate"`, "dispatcher --help"}},
		"flag and file":                           {nil, "run --nats-token=x --nats-token-file=y", []string{"--nats-token and --nats-token-file"}},
		"variable and file variable": {
			vars{"OUTBOX_NATS_TOKEN": "x", "OUTBOX_NATS_TOKEN_FILE": "y"},
			"run",
			[]string{"OUTBOX_NATS_TOKEN and OUTBOX_NATS_TOKEN_FILE are both set"},
		},
		"domain and prefix": {nil, "run --jetstream-domain=x --jetstream-api-prefix=y", []string{"--jetstream-domain and --jetstream-api-prefix"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(t, c.vars, strings.Fields(c.args)...)
			if err == nil {
				t.Fatal("accepted")
			}
			if _, ok := err.(usageError); !ok { //nolint:errorlint // the outermost type decides the exit code
				t.Errorf("%T is not a usage error", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") && !strings.Contains(oneLine(err), "; ") {
				t.Errorf("%q has lines", err)
			}
		})
	}
}

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
		if name == "retry-min" {
			cfg.RetryMax = 24 * time.Hour // or it would be below the minimum
		}
		switch d := time.Duration(v); name {
		case "batch":
			cfg.Batch = int(v)
		case "batch-bytes":
			cfg.BatchBytes = int(v)
		case "workers":
			cfg.Workers = int(v)
		case "max-attempts":
			cfg.MaxAttempts = int(v)
		case "sweep-interval":
			cfg.SweepInterval = d
		case "poll-interval":
			cfg.PollInterval = d
		case "publish-timeout":
			cfg.PublishTimeout = d
		case "drain-timeout":
			cfg.DrainTimeout = d
		case "retry-min":
			cfg.RetryMin = d
		case "retry-max":
			cfg.RetryMin, cfg.RetryMax = min(d, time.Millisecond), d
		default:
			t.Fatalf("--%s has a range and no place in dispatcher.Config", name)
		}
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

func TestHelpShowsVariablesAndNoValues(t *testing.T) {
	const canary = "canary-of-the-help"
	var out bytes.Buffer
	code := run(t.Context(), []string{"run", "--help"}, func(string) string { return canary }, &out, &out)
	if code != exitOK {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"--batch=500", "(1 to 10000, $OUTBOX_BATCH)", "$OUTBOX_NATS_URL, $NATS_URL", "Dispatching", `--http="127.0.0.1:8080"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(text, canary) {
		t.Error("the help shows the value of a variable")
	}
}
