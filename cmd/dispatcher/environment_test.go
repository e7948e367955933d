package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-dispatcher/outbox/dispatcher"
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
	_, err = a.parse(k, args, environ(vars))
	return &c, a, err
}

func environ(vars map[string]string) []string {
	pairs := make([]string, 0, len(vars))
	for name, value := range vars {
		pairs = append(pairs, name+"="+value)
	}
	return pairs
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
	for name, c := range map[string]struct {
		vars vars
		args string
		want []string
	}{
		"range names flag, range, value, default": {nil, "run --batch=0", []string{"--batch must be 1 to 10000, got 0", "default is 1000"}},
		"range names the variable":                {vars{"OUTBOX_RETRY_MIN": "0s"}, "run", []string{"--retry-min (from OUTBOX_RETRY_MIN) must be 1ms to 24h, got 0s"}},
		"all that is wrong is told":               {nil, "run --batch=0 --workers=65", []string{"--batch", "--workers must be 1 to 64, got 65"}},
		"not a number":                            {vars{"OUTBOX_BATCH": "many"}, "run", []string{"--batch", `"many"`, "from OUTBOX_BATCH"}},
		"not a duration":                          {nil, "run --retry-min=5", []string{"--retry-min", "5"}},
		"not one of the choices":                  {nil, "run --wake=pigeon", []string{"--wake", `"notify","wal","auto","poll"`, `"pigeon"`}},
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
