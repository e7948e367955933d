package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The database driver makes several lines of one error.
func TestLogKeepsAnErrorInOneLine(t *testing.T) {
	err := fmt.Errorf("listen: %w", errors.Join(errors.New("failed to connect:\n\t127.0.0.1:5432: refused"), errors.New("[::1]:5432: refused")))
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		f := logFlags{LogFormat: format, LogLevel: "info"}
		f.logger(&out).Info("m", "error", err)
		const want = "listen: failed to connect: 127.0.0.1:5432: refused; [::1]:5432: refused"
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q is missing in %s", format, want, out.String())
		}
	}
}
