package main

import (
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

// natsOptions is what "run" makes of the variables and flags.
func natsOptions(t *testing.T, vars map[string]string, args ...string) (string, []nats.Option, error) {
	t.Helper()
	c, a, err := parse(t, vars, append([]string{"run"}, args...)...)
	if err != nil {
		return "", nil, err
	}
	servers, err := c.Run.servers(a)
	if err != nil {
		return "", nil, err
	}
	opts, err := c.Run.options(a)
	return servers, append(opts, dispatcher.NATSOptions()...), err
}

// A secret that was rotated in its file is used from the next connection on.
func TestNATSPasswordFileIsReadAgain(t *testing.T) {
	file := writeFile(t, "first-word\n")
	_, opts, err := natsOptions(t, map[string]string{"NATS_USER": "ann", "OUTBOX_NATS_PASSWORD_FILE": file})
	if err != nil {
		t.Fatal(err)
	}
	o := nats.GetDefaultOptions()
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"first-word", "second-word"} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, password := o.UserInfo(); user != "ann" || password != want {
			t.Errorf("got %s, %s, want %s", user, password, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, password := o.UserInfo(); password != "second-word" {
		t.Errorf("without the file the password is %q", password)
	}
}

func TestNATSSettingsErrors(t *testing.T) {
	certs := natstest.NewCertificates(t)
	seed, _ := nkeyUser(t)
	garbage := writeFile(t, "canary-of-a-file")
	for name, c := range map[string]struct {
		vars vars
		want string
	}{
		"two ways":                  {vars{"NATS_CREDS": "x", "OUTBOX_NATS_TOKEN": "y"}, "--nats-creds (from NATS_CREDS) and --nats-token (from OUTBOX_NATS_TOKEN) exclude each other"},
		"URL and flag":              {vars{"NATS_URL": "nats://u:canary@h", "NATS_USER": "ann"}, "--nats-url (from NATS_URL) holds a user"},
		"missing credentials":       {vars{"NATS_CREDS": "/nonexistent"}, "--nats-creds (from NATS_CREDS): open /nonexistent"},
		"credentials without a JWT": {vars{"NATS_CREDS": garbage}, "holds no user JWT"},
		"credentials without seed":  {vars{"NATS_CREDS": writeFile(t, "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n")}, "holds no seed"},
		"nkey that is none":         {vars{"NATS_NKEY": garbage}, "--nats-nkey (from NATS_NKEY)"},
		"missing nkey":              {vars{"NATS_NKEY": "/nonexistent"}, "--nats-nkey (from NATS_NKEY): /nonexistent"},
		"empty password file":       {vars{"NATS_USER": "ann", "OUTBOX_NATS_PASSWORD_FILE": writeFile(t, "")}, "is empty"},
		"password without user":     {vars{"NATS_PASSWORD": "canary"}, "needs --nats-user"},
		"certificate without key":   {vars{"NATS_CERT": certs.ClientCert}, "belong together"},
		"a key as certificate":      {vars{"NATS_CERT": certs.ClientKey, "NATS_KEY": certs.ClientKey}, "--nats-tls-cert (from NATS_CERT)"},
		"CA that is none":           {vars{"NATS_CA": garbage}, "--nats-tls-ca (from NATS_CA)"},
		"seed as CA":                {vars{"NATS_CA": seed}, "--nats-tls-ca"},
		"inbox with wildcard":       {vars{"OUTBOX_NATS_INBOX_PREFIX": "_INBOX.>"}, "--nats-inbox-prefix (from OUTBOX_NATS_INBOX_PREFIX)"},
		"scheme":                    {vars{"NATS_URL": "http://h"}, "nats://host:4222"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := natsOptions(t, c.vars)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, ok := err.(usageError); !ok { //nolint:errorlint // the outermost type decides the exit code
				t.Errorf("%T is not a usage error", err)
			}
		})
	}
}

func TestNATSConnectionName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]natsFlags{
		"outbox-dispatcher/" + host: {},
		"chosen":                    {NATSName: "chosen"},
	} {
		if got := f.connectionName(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
