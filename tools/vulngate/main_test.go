package main

import (
	"strings"
	"testing"
)

const config = `{"config":{"protocol_version":"v1.0.0"}}`

func TestGate(t *testing.T) {
	for name, c := range map[string]struct {
		in, out, err string
	}{
		"nothing found": {in: config},
		"nothing said":  {err: "it did not run"},
		"cut off":       {in: config + `{"finding":`, err: "unexpected EOF"},
		"standard library": {
			in:  config + `{"finding":{"osv":"GO-1","fixed_version":"v1.26.9","trace":[{"module":"stdlib","package":"net","function":"Dial"}]}}`,
			out: "GO-1 (fixed in Go 1.26.9)",
		},
		"module, reached": {
			in:  config + `{"finding":{"osv":"GO-2","fixed_version":"v1.1.0","trace":[{"module":"example.org/m","version":"v1.0.0","package":"example.org/m/p","function":"F"}]}}`,
			err: "GO-2: example.org/m@v1.0.0, example.org/m/p.F, fixed in v1.1.0",
		},
		"module, imported but not reached": {
			in: config + `{"finding":{"osv":"GO-2","trace":[{"module":"example.org/m","version":"v1.0.0","package":"example.org/m/p"}]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(c.in), &out)
			switch {
			case c.err == "" && err != nil:
				t.Errorf("failed: %v", err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v does not say %q", err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("output %q does not say %q", out.String(), c.out)
			}
		})
	}
}
