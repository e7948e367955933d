// Vulngate reads what "govulncheck -format json" says and fails on a
// vulnerability that the code can reach, unless it is in the standard library:
// that one is cured by another Go toolchain and not by a change here, so it is
// only told.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// message is the part of one govulncheck message that is looked at.
type message struct {
	Config  *struct{} `json:"config"`
	Finding *finding  `json:"finding"`
}

type finding struct {
	OSV          string `json:"osv"`
	FixedVersion string `json:"fixed_version"`
	// Trace begins at the vulnerable symbol. Only where code of ours leads to
	// it does it name a function.
	Trace []struct {
		Module   string `json:"module"`
		Version  string `json:"version"`
		Package  string `json:"package"`
		Function string `json:"function"`
	} `json:"trace"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vulngate:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	complete := false
	var stdlib, ours []string
	for {
		var m message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read govulncheck's output: %w", err)
		}
		// The first message; without it govulncheck has not run at all.
		complete = complete || m.Config != nil
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Function == "" {
			continue
		}
		if m.Finding.Trace[0].Module == "stdlib" {
			stdlib = append(stdlib, fmt.Sprintf("%s (fixed in %s)", m.Finding.OSV, strings.Replace(m.Finding.FixedVersion, "v", "Go ", 1)))
		} else {
			ours = append(ours, describe(m.Finding))
		}
	}
	if !complete {
		return errors.New("govulncheck's output has no config message: it did not run")
	}
	if stdlib = unique(stdlib); len(stdlib) > 0 {
		fmt.Fprintf(out, "in the standard library, cured by a newer Go: %s\n", strings.Join(stdlib, ", "))
	}
	if ours = unique(ours); len(ours) > 0 {
		return fmt.Errorf("reachable vulnerabilities:\n  %s", strings.Join(ours, "\n  "))
	}
	return nil
}

func describe(f *finding) string {
	at := f.Trace[0]
	cure := "no fixed version"
	if f.FixedVersion != "" {
		cure = "fixed in " + f.FixedVersion
	}
	return fmt.Sprintf("%s: %s@%s, %s.%s, %s", f.OSV, at.Module, at.Version, at.Package, at.Function, cure)
}

func unique(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
