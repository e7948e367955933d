package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestRedactor(t *testing.T) {
	for name, c := range map[string]struct{ secret, text, want string }{
		"plain":            {"sesame-open", "say sesame-open now", "say [redacted] now"},
		"escaped in a URL": {"p@ss/wörd", "nats://u:p%40ss%2Fw%C3%B6rd@h", "nats://u:[redacted]@h"},
		"quoted":           {"tab\tand\"quote", fmt.Sprintf("%q", "tab\tand\"quote"), `"[redacted]"`},
		"short":            {"abc", "abc is no secret", "abc is no secret"},
		"none":             {"", "text", "text"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &redactor{}
			r.add(c.secret)
			var out bytes.Buffer
			w := r.writer(&out)
			if n, err := w.Write([]byte(c.text)); err != nil || n != len(c.text) {
				t.Errorf("Write returned %d, %v", n, err)
			}
			if out.String() != c.want {
				t.Errorf("got %q, want %q", out.String(), c.want)
			}
		})
	}
}

func TestRedactorPrefersTheLongest(t *testing.T) {
	r := &redactor{}
	r.add("password1")
	r.add("postgres://u:password1@host/db")
	if got := r.clean("<postgres://u:password1@host/db> <password1>"); got != "<[redacted]> <[redacted]>" {
		t.Errorf("got %q", got)
	}
}

func TestSecretFiles(t *testing.T) {
	a := testApp()
	for content, want := range map[string]string{
		"s3cret\n":         "s3cret",
		"s3cret\r\n":       "s3cret",
		" with blanks  \n": " with blanks  ",
	} {
		if got, err := a.secret("", writeFile(t, content), "x-file"); err != nil || got != want {
			t.Errorf("%q gave %q, %v", content, got, err)
		}
	}
	for name, file := range map[string]string{
		"empty":     writeFile(t, "\n"),
		"too large": writeFile(t, strings.Repeat("x", maxSecretFile+1)),
		"missing":   "/nonexistent/file",
		"folder":    t.TempDir(),
	} {
		_, err := a.secret("", file, "x-file")
		if err == nil || !strings.HasPrefix(err.Error(), "--x-file: ") || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No way of writing a connection string wrongly makes its password appear.
func TestDSNErrorsHideThePassword(t *testing.T) {
	for _, dsn := range []string{
		"postgres://user:canary/secret@host/db",
		"postgres://user:canary%zzsecret@host/db",
		"postgres://user:canary secret@host/db",
		"postgres://user:canary@secret:x@host:1:2/db",
		"postgres://user:canary-secret@host:notaport/db",
		"postgres://user:canary-secret@host/db?sslmode=canary",
		"postgres://user:canary-secret@host/db?sslrootcert=/nonexistent&sslmode=verify-full",
		"postgres://user:canary-secret@host/db?pool_max_conns=x",
		"postgres://user:canary-secret@host/db?connect_timeout=x",
		"postgres://user:canary-secret@host/db?target_session_attrs=x",
		"postgres://user:canary-secret@[::1/db",
		"host=h password='canary-secret user=x",
		"host=h password=canary secret",
		"password=canary-secret port=x",
		"password=canary-secret`: host",
		"canary-secret",
	} {
		_, err := parseDSN(testApp(), "database-url", dsn)
		if err == nil {
			t.Errorf("%q was accepted", dsn)
			continue
		}
		for _, part := range []string{"canary-", "canary ", "canary/", "canary%", "canary@", "secret", "%zz"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%q: the error shows it: %v", dsn, err)
			}
		}
		if !strings.HasPrefix(err.Error(), "--database-url: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %q", dsn, err)
		}
	}
}

func TestNATSURLErrorsHideThePassword(t *testing.T) {
	for _, url := range []string{
		"nats://user:canary%zz@host:4222",
		"nats://user:canary/x@host:4222",
		"http://user:canary-x@host",
		"nats://ok:4222,nats://user:canary x@host",
		"nats://canary@",
	} {
		f := natsFlags{NATSURL: url}
		_, err := f.servers(testApp())
		if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "--nats-url") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
