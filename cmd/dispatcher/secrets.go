package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	redacted = "[redacted]"
	// minRedacted is the length below which a secret is not searched for in
	// the output: replacing every "abc" would garble it, and would tell more
	// than it hides.
	minRedacted = 8
	// maxSecretFile bounds what is read of a file that should hold one line.
	maxSecretFile = 64 << 10
)

// redactor is the second line of defence: no code of ours prints a secret, but
// libraries quote what they were given. It replaces known secrets in
// everything the program writes. Safe for concurrent use.
type redactor struct {
	mu       sync.RWMutex
	secrets  []string
	replacer *strings.Replacer
}

// add makes r hide secret, also in its escaped forms.
func (r *redactor) add(secret string) {
	if len(secret) < minRedacted {
		return
	}
	quoted := strconv.Quote(secret)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), quoted[1 : len(quoted)-1]} {
		if !slices.Contains(r.secrets, form) {
			r.secrets = append(r.secrets, form)
		}
	}
	// Longest first: a replacer prefers earlier pairs, and a password must
	// not be cut out of the connection string that holds it.
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(r.secrets))
	for _, s := range r.secrets {
		pairs = append(pairs, s, redacted)
	}
	r.replacer = strings.NewReplacer(pairs...)
}

// clean returns s without the secrets.
func (r *redactor) clean(s string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.replacer == nil {
		return s
	}
	return r.replacer.Replace(s)
}

// writer returns w behind r. Each Write must carry whole lines, as those of
// slog and fmt.Fprintf do: a secret cut in two would pass.
func (r *redactor) writer(w io.Writer) io.Writer { return redactingWriter{r, w} }

type redactingWriter struct {
	r *redactor
	w io.Writer
}

func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.w, w.r.clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// secret returns value, or else the content of file without its final line
// break; flag names the file's flag for the error. Both empty: "".
func (a *app) secret(value, file, flag string) (string, error) {
	if file == "" {
		return value, nil
	}
	f, err := os.Open(file) // #nosec G304 -- the operator names it
	if err != nil {
		return "", usageError{fmt.Errorf("%s: %w", a.flag(flag), err)}
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch {
	case err != nil:
		return "", usageError{fmt.Errorf("%s: %w", a.flag(flag), err)}
	case len(content) > maxSecretFile:
		return "", usageError{fmt.Errorf("%s: %s is larger than %d bytes: name the file that holds only the secret", a.flag(flag), file, maxSecretFile)}
	}
	secret := strings.TrimRight(string(content), "\r\n")
	if secret == "" {
		return "", usageError{fmt.Errorf("%s: %s is empty: write the secret into it, or leave the flag out", a.flag(flag), file)}
	}
	return secret, nil
}
