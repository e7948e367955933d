package main

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// environment gives kong the values of variables. We do not use kong's own
// variables, which are read from the process only and know neither the order
// of precedence between a secret and the file that holds it, nor that an empty
// variable means "not set", which is how compose files leave things out.
//
// Struct tags read here: "also" has further variables, weaker than OUTBOX_*;
// "noenv" keeps a flag out of the environment; "range" has the limits of a
// number or duration, "lo..hi", both inclusive.
type environment struct {
	values map[string]string
	// used tells which variable a flag's value came from, by flag name.
	used map[string]string
}

// newEnvironment reads pairs as those of [os.Environ].
func newEnvironment(environ []string) *environment {
	e := &environment{values: make(map[string]string, len(environ)), used: map[string]string{}}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			e.values[name] = value
		}
	}
	return e
}

// strength orders where a value came from.
type strength int

const (
	unset strength = iota
	foreignVariable
	ownVariable
	commandLine
)

// variables returns the names a flag can be set by, strongest first.
func variables(flag *kong.Flag) []string {
	if flag.Tag.Has("noenv") {
		return nil
	}
	own := "OUTBOX_" + strings.ReplaceAll(strings.ToUpper(flag.Name), "-", "_")
	return append([]string{own}, strings.Fields(flag.Tag.Get("also"))...)
}

// Validate implements [kong.Resolver].
func (e *environment) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver] for a flag that is not on the command line.
func (e *environment) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, variable, strong := e.lookup(flag)
	if strong == unset {
		return nil, nil
	}
	if twin := fileTwin(ctx, flag); twin != nil {
		twinStrong := commandLine
		twinVariable := ""
		if !onCommandLine(ctx, twin) {
			_, twinVariable, twinStrong = e.lookup(twin)
		}
		switch {
		case twinStrong > strong:
			return nil, nil
		case twinStrong == strong:
			return nil, fmt.Errorf("%s and %s are both set: set one", variable, twinVariable)
		}
	}
	e.used[flag.Name] = variable
	return value, nil
}

func (e *environment) lookup(flag *kong.Flag) (value, variable string, strong strength) {
	for i, name := range variables(flag) {
		value := e.values[name]
		switch {
		case value == "":
		case i == 0:
			return value, name, ownVariable
		default:
			return value, name, foreignVariable
		}
	}
	return "", "", unset
}

// fileTwin finds --x-file for --x, and the other way round. Nil: there is none.
func fileTwin(ctx *kong.Context, flag *kong.Flag) *kong.Flag {
	want, isFile := strings.CutSuffix(flag.Name, "-file")
	if !isFile {
		want += "-file"
	}
	for _, f := range ctx.Flags() {
		if f.Name == want {
			return f
		}
	}
	return nil
}

func onCommandLine(ctx *kong.Context, flag *kong.Flag) bool {
	for _, p := range ctx.Path {
		if p.Flag == flag && !p.Resolved {
			return true
		}
	}
	return false
}

// checkRanges holds the values against the "range" tags and reports all that
// are outside.
func checkRanges(ctx *kong.Context, a *app) error {
	var errs []error
	for _, flag := range ctx.Flags() {
		limits := flag.Tag.Get("range")
		if limits == "" {
			continue
		}
		lo, hi, err := parseRange(limits, flag.Target.Type())
		if err != nil {
			return fmt.Errorf("range of --%s: %w", flag.Name, err)
		}
		if v := flag.Target.Int(); v < lo || v > hi {
			errs = append(errs, fmt.Errorf("%s must be %s, got %v: choose a value in that range; the default is %s",
				a.flag(flag.Name), strings.Replace(limits, "..", " to ", 1), flag.Target.Interface(), flag.Default))
		}
	}
	return errors.Join(errs...)
}

// parseRange reads "lo..hi" as two numbers, or as two durations in nanoseconds.
func parseRange(s string, typ reflect.Type) (lo, hi int64, err error) {
	from, to, _ := strings.Cut(s, "..")
	parse := func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
	if typ == reflect.TypeFor[time.Duration]() {
		parse = func(s string) (int64, error) {
			d, err := time.ParseDuration(s)
			return int64(d), err
		}
	}
	lo, errLo := parse(from)
	hi, errHi := parse(to)
	return lo, hi, errors.Join(errLo, errHi)
}
