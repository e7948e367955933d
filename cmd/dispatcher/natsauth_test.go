package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/outbox-dispatcher/outbox/dispatcher"
	"github.com/outbox-dispatcher/outbox/internal/natstest"
)

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

// wayIn is a server's configuration, and settings that it lets in or not.
type wayIn struct {
	config     string
	good, bad  vars
	tlsPresent bool
}

type vars = map[string]string

// waysIn holds each kind of authentication, by flag, variable and file.
func waysIn(t *testing.T) map[string]wayIn {
	t.Helper()
	creds, operator := credentials(t)
	otherCreds, _ := credentials(t)
	seed, public := nkeyUser(t)
	otherSeed, _ := nkeyUser(t)
	certs, otherCerts := natstest.NewCertificates(t), natstest.NewCertificates(t)
	const users = "authorization { users = [ { user: ann, password: s3cret-word } ] }"
	const token = "authorization { token: s3cret-token }"
	return map[string]wayIn{
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
	}
}

// Each way into a NATS server works, and is closed to the wrong
// secret.
func TestNATSAuthentication(t *testing.T) {
	for name, way := range waysIn(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			way.test(t)
		})
	}
}

func (c wayIn) test(t *testing.T) {
	t.Helper()
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
}
