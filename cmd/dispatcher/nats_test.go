package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

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

// credentials are those of one user of an account in operator mode, and the
// configuration of a server that trusts it.
func credentials(t *testing.T) (file, config string) {
	t.Helper()
	pair := func(kp nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		public, err := kp.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return kp, public
	}
	operator, operatorKey := pair(nkeys.CreateOperator())
	account, accountKey := pair(nkeys.CreateAccount())
	_, systemKey := pair(nkeys.CreateAccount())
	user, userKey := pair(nkeys.CreateUser())
	encode := func(claims jwt.Claims, signer nkeys.KeyPair) string {
		t.Helper()
		token, err := claims.Encode(signer)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	accountClaims := jwt.NewAccountClaims(accountKey)
	accountClaims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	userToken := encode(jwt.NewUserClaims(userKey), account)
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(userToken, seed)
	if err != nil {
		t.Fatal(err)
	}
	operatorClaims := jwt.NewOperatorClaims(operatorKey)
	operatorClaims.SystemAccount = systemKey
	return writeFile(t, string(creds)), fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		encode(operatorClaims, operator),
		accountKey, encode(accountClaims, operator),
		systemKey, encode(jwt.NewAccountClaims(systemKey), operator))
}

func nkeyUser(t *testing.T) (file, public string) {
	t.Helper()
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err = kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, string(seed)+"\n"), public
}

// Each way into a NATS server works, by flag, variable and file, and is refused
// with the wrong secret.
func TestNATSAuthentication(t *testing.T) {
	creds, operator := credentials(t)
	otherCreds, _ := credentials(t)
	seed, public := nkeyUser(t)
	otherSeed, _ := nkeyUser(t)
	certs, otherCerts := natstest.NewCertificates(t), natstest.NewCertificates(t)
	const users = "authorization { users = [ { user: ann, password: s3cret-word } ] }"
	const token = "authorization { token: s3cret-token }"
	type vars = map[string]string
	for name, c := range map[string]struct {
		config     string
		good, bad  vars
		tlsPresent bool
	}{
		"credentials": {config: operator, good: vars{"OUTBOX_NATS_CREDS": creds}, bad: vars{"OUTBOX_NATS_CREDS": otherCreds}},
		"credentials by the second name": {
			config: operator, good: vars{"NATS_CREDS": creds}, bad: vars{"NATS_CREDS": otherCreds},
		},
		"nkey": {
			config: "authorization { users = [ { nkey: " + public + " } ] }",
			good:   vars{"NATS_NKEY": seed}, bad: vars{"NATS_NKEY": otherSeed},
		},
		"user and password": {
			config: users,
			good:   vars{"NATS_USER": "ann", "NATS_PASSWORD": "s3cret-word"}, bad: vars{"NATS_USER": "ann", "NATS_PASSWORD": "other-word"},
		},
		"password file": {
			config: users,
			good:   vars{"NATS_USER": "ann", "OUTBOX_NATS_PASSWORD_FILE": writeFile(t, "s3cret-word\n")},
			bad:    vars{"NATS_USER": "ann", "OUTBOX_NATS_PASSWORD_FILE": writeFile(t, "other-word\n")},
		},
		"user in the URL": {
			config: users,
			good:   vars{"NATS_URL": "nats://ann:s3cret-word@ADDR"}, bad: vars{"NATS_URL": "nats://ann:other-word@ADDR"},
		},
		"token": {config: token, good: vars{"NATS_TOKEN": "s3cret-token"}, bad: vars{"NATS_TOKEN": "other-token"}},
		"token file": {
			config: token, good: vars{"OUTBOX_NATS_TOKEN_FILE": writeFile(t, "s3cret-token")},
			bad: vars{"OUTBOX_NATS_TOKEN_FILE": writeFile(t, "other-token")},
		},
		"TLS": {
			config: certs.ServerTLS(false), tlsPresent: true,
			good: vars{"NATS_CA": certs.CA}, bad: vars{"NATS_CA": otherCerts.CA},
		},
		"mutual TLS": {
			config: certs.ServerTLS(true), tlsPresent: true,
			good: vars{"NATS_CA": certs.CA, "NATS_CERT": certs.ClientCert, "NATS_KEY": certs.ClientKey},
			bad:  vars{"NATS_CA": certs.CA, "NATS_CERT": otherCerts.ClientCert, "NATS_KEY": otherCerts.ClientKey},
		},
		"TLS first": {
			config: strings.Replace(certs.ServerTLS(false), "tls {", "tls { handshake_first: true,", 1), tlsPresent: true,
			good: vars{"NATS_CA": certs.CA, "OUTBOX_NATS_TLS_FIRST": "true"}, bad: vars{"NATS_CA": certs.CA},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Listening(t, natstest.WithConfig(c.config))
			connect := func(v vars) (*nats.Conn, error) {
				given := vars{"NATS_URL": s.URL()}
				for k, val := range v {
					given[k] = strings.ReplaceAll(val, "ADDR", s.Addr())
				}
				servers, opts, err := natsOptions(t, given)
				if err != nil {
					t.Fatal(err)
				}
				return nats.Connect(servers, append(opts, nats.RetryOnFailedConnect(false))...)
			}
			nc, err := connect(c.good)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			defer nc.Close()
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			if err := dispatcher.CreateStream(t.Context(), js, "outbox", ""); err != nil {
				t.Errorf("connected, and JetStream does not answer: %v", err)
			}
			if _, err := nc.TLSConnectionState(); (err == nil) != c.tlsPresent {
				t.Errorf("TLS: %v", err)
			}
			if nc, err := connect(c.bad); err == nil {
				nc.Close()
				t.Error("let in with the wrong secret")
			}
		})
	}
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
	type vars = map[string]string
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
