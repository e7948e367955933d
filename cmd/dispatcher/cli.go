package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/outbox-dispatcher/outbox"
	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitFailure = 1 // it could not do what was asked
	exitUsage   = 2 // it was asked wrongly: flags, variables, files they name
	exitKilled  = 3 // a second signal cut the graceful stop short
)

// cli is the command line: kong makes the parser, the help and the reference
// table of the README from it.
type cli struct {
	Run         runCmd         `cmd:"" help:"Dispatch tasks until SIGTERM or SIGINT; a second signal stops at once."`
	Migrate     migrateCmd     `cmd:"" help:"Create, upgrade or show the database schema."`
	Status      statusCmd      `cmd:"" help:"Show the tasks by state and whether wakes arrive."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a dispatcher on this machine for its health: exit code 0 or 1."`
	Version     versionCmd     `cmd:"" help:"Show the version of this program."`
	Docs        docsCmd        `cmd:"" hidden:"" help:"Print the configuration reference in Markdown."`
}

// app is what the commands share.
type app struct {
	stdout, stderr io.Writer
	redact         *redactor
	env            *environment
	// logger is set while "run" logs as JSON: the line with the final error
	// is then JSON, too.
	logger *slog.Logger
}

// usageError is an error in how the program was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errHelp ends the parsing after help, or the version, was printed.
var errHelp = errors.New("help was printed")

// helpFlag replaces kong's own, which exits the process.
type helpFlag bool

// IgnoreDefault lets kong show the help of a command that has a default
// subcommand.
func (helpFlag) IgnoreDefault() {}

// BeforeReset prints the help as soon as the flag was seen, before anything
// else on the command line is judged.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errHelp
}

// versionFlag is "dispatcher version" for those who try a flag first.
type versionFlag bool

// BeforeReset prints the version as soon as the flag was seen.
func (versionFlag) BeforeReset(ctx *kong.Context) error {
	if err := (&versionCmd{}).print(ctx.Stdout); err != nil {
		return err
	}
	return errHelp
}

// globalFlags are those of every command.
type globalFlags struct {
	Help    helpFlag    `short:"h" noenv:"" help:"Show help."`
	Version versionFlag `noenv:"" hidden:"" help:"Show the version of this program."`
}

// run is the program without its process: it returns the exit code, and stops
// gracefully when ctx ends.
func run(ctx context.Context, args []string, environ []string, stdout, stderr io.Writer) int {
	redact := &redactor{}
	a := &app{stdout: redact.writer(stdout), stderr: redact.writer(stderr), redact: redact}
	err := a.run(ctx, args, environ)
	switch {
	case err == nil || errors.Is(err, errHelp):
		return exitOK
	case a.logger != nil:
		a.logger.Error("dispatcher failed", "error", oneLine(err))
	default:
		fmt.Fprintf(a.stderr, "dispatcher: %s\n", oneLine(err))
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

func (a *app) run(ctx context.Context, args, environ []string) error {
	var c cli
	parser, err := newParser(&c, a.stdout, a.stderr)
	if err != nil {
		return fmt.Errorf("build the command line: %w", err)
	}
	kctx, err := a.parse(parser, args, environ)
	if err != nil {
		return err
	}
	kctx.BindTo(ctx, (*context.Context)(nil))
	return kctx.Run(a)
}

// parse fills the structure that parser was made for.
func (a *app) parse(parser *kong.Kong, args, environ []string) (*kong.Context, error) {
	a.env = newEnvironment(environ)
	if err := kong.Resolvers(a.env).Apply(parser); err != nil {
		return nil, fmt.Errorf("build the command line: %w", err)
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		return nil, parseError(err, a.env, args)
	}
	if err := checkRanges(kctx, a); err != nil {
		return nil, usageError{err}
	}
	return kctx, nil
}

// newParser builds the parser for c.
func newParser(c *cli, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("dispatcher"),
		kong.Description("Sends the tasks of a PostgreSQL outbox table to NATS JetStream, within about a millisecond of their commit on an idle machine."+
			"\n\nA setting can also be given as a variable: --batch is OUTBOX_BATCH. A flag wins over a variable, a variable over the default."),
		kong.Writers(stdout, stderr),
		kong.NoDefaultHelp(),
		kong.Embed(&globalFlags{}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 120}),
		kong.ValueFormatter(helpText),
		kong.Vars{
			"schema":          dispatcher.DefaultSchema,
			"prefix":          dispatcher.DefaultPrefix,
			"batch":           strconv.Itoa(dispatcher.DefaultBatch),
			"batch_bytes":     strconv.Itoa(dispatcher.DefaultBatchBytes),
			"workers":         strconv.Itoa(dispatcher.DefaultWorkers),
			"sweep_interval":  duration(dispatcher.DefaultSweepInterval),
			"poll_interval":   duration(dispatcher.DefaultPollInterval),
			"publish_timeout": duration(dispatcher.DefaultPublishTimeout),
			"drain_timeout":   duration(dispatcher.DefaultDrainTimeout),
			"max_attempts":    strconv.Itoa(dispatcher.DefaultMaxAttempts),
			"retry_min":       duration(dispatcher.DefaultRetryMin),
			"retry_max":       duration(dispatcher.DefaultRetryMax),
			"http":            defaultHTTP,
			"lock_timeout":    duration(outbox.DefaultLockTimeout),
			"lock_wait":       duration(outbox.DefaultLockWait),
		},
	)
}

// duration is 10m where Duration.String says 10m0s.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// flag names a flag in an error, and the variable if it was set by one.
func (a *app) flag(name string) string {
	if a.env != nil && a.env.used[name] != "" {
		return "--" + name + " (from " + a.env.used[name] + ")"
	}
	return "--" + name
}

// helpText adds the variables and the range to a flag's help.
func helpText(v *kong.Value) string {
	notes := make([]string, 0, 2)
	if r := v.Tag.Get("range"); r != "" {
		notes = append(notes, strings.Replace(r, "..", " to ", 1))
	}
	if v.Flag != nil {
		for _, name := range variables(v.Flag) {
			notes = append(notes, "$"+name)
		}
	}
	if len(notes) == 0 {
		return v.Help
	}
	return v.Help + " (" + strings.Join(notes, ", ") + ")"
}

// parseError makes one line of what kong says, names the variable a bad value
// came from, and keeps secrets of the command line out of it.
func parseError(err error, env *environment, args []string) error {
	if errors.Is(err, errHelp) {
		return err
	}
	text := oneLine(err)
	hint := "dispatcher --help"
	if p, ok := errors.AsType[*kong.ParseError](err); ok && p.Context != nil && p.Context.Selected() != nil {
		node := p.Context.Selected()
		hint = node.FullPath() + " --help"
		if len(node.Children) == 0 && strings.HasPrefix(text, "unexpected argument") {
			// The argument may be half of a secret that was not quoted.
			text = "unexpected argument: " + node.FullPath() + " takes only flags"
		}
	}
	if name, _, ok := strings.Cut(strings.TrimPrefix(text, "--"), ":"); ok && env.used[name] != "" {
		text += " (from " + env.used[name] + ")"
	}
	for _, arg := range args {
		if looksSecret.MatchString(arg) {
			text = strings.ReplaceAll(text, arg, redacted)
			if _, value, ok := strings.Cut(arg, "="); ok && value != "" {
				text = strings.ReplaceAll(text, value, redacted)
			}
		}
	}
	return usageError{fmt.Errorf("%s (see %s)", text, hint)}
}

// looksSecret finds connection strings among the arguments.
var looksSecret = regexp.MustCompile(`(?i)://[^/]*@|password|token|secret`)

// oneLine flattens an error that was joined of several, or that a driver
// broke into lines.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
