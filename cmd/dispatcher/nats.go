package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// natsFlags say where JetStream is and how to be let in. The second names of
// the variables are those of the nats command.
type natsFlags struct {
	NATSURL          string `name:"nats-url" group:"NATS" also:"NATS_URL" default:"nats://127.0.0.1:4222" help:"NATS servers: nats://, tls://, ws:// or wss:// with commas between."`
	NATSCreds        string `name:"nats-creds" group:"NATS" also:"NATS_CREDS" placeholder:"FILE" help:"Credentials file (JWT and seed). Read again at each reconnect."`
	NATSNkey         string `name:"nats-nkey" group:"NATS" also:"NATS_NKEY" placeholder:"FILE" help:"File with the seed of an nkey user. Read again at each reconnect."`
	NATSUser         string `name:"nats-user" group:"NATS" also:"NATS_USER" placeholder:"NAME" help:"User name."`
	NATSPassword     string `name:"nats-password" group:"NATS" xor:"nats-password" also:"NATS_PASSWORD" placeholder:"SECRET" help:"Password of --nats-user. Other users of the machine can read a command line: prefer the variable or the file."`
	NATSPasswordFile string `name:"nats-password-file" group:"NATS" xor:"nats-password" placeholder:"FILE" help:"File that holds --nats-password. Read again at each reconnect."`
	NATSToken        string `name:"nats-token" group:"NATS" xor:"nats-token" also:"NATS_TOKEN" placeholder:"SECRET" help:"Token. Prefer the variable or the file."`
	NATSTokenFile    string `name:"nats-token-file" group:"NATS" xor:"nats-token" placeholder:"FILE" help:"File that holds --nats-token. Read again at each reconnect."`
	NATSTLSCert      string `name:"nats-tls-cert" group:"NATS" also:"NATS_CERT" placeholder:"FILE" help:"Client certificate, PEM. Read again at each reconnect."`
	NATSTLSKey       string `name:"nats-tls-key" group:"NATS" also:"NATS_KEY" placeholder:"FILE" help:"Key of --nats-tls-cert, PEM."`
	NATSTLSCA        string `name:"nats-tls-ca" group:"NATS" also:"NATS_CA" placeholder:"FILE" help:"Certificates that sign the server's, PEM. Default: those of the system."`
	NATSTLSFirst     bool   `name:"nats-tls-first" group:"NATS" help:"Start with the TLS handshake, before the server says a word; the server must be set up for it."`
	NATSInboxPrefix  string `name:"nats-inbox-prefix" group:"NATS" placeholder:"SUBJECT" help:"Where answers are awaited, for accounts that restrict it. Default: _INBOX."`
	NATSName         string `name:"nats-name" group:"NATS" placeholder:"NAME" help:"Name of the connection in the server's lists. Default: outbox-dispatcher/HOST."`

	JetStreamDomain    string `name:"jetstream-domain" group:"NATS" xor:"jetstream" placeholder:"NAME" help:"JetStream domain, behind a leaf node."`
	JetStreamAPIPrefix string `name:"jetstream-api-prefix" group:"NATS" xor:"jetstream" placeholder:"SUBJECT" help:"Prefix of the JetStream API, for an imported account."`
}

// servers checks the URLs and returns them as nats.Connect takes them.
func (f *natsFlags) servers(a *app) (string, error) {
	entries := strings.Split(f.NATSURL, ",")
	for i, entry := range entries {
		entry = strings.TrimSpace(entry)
		if !strings.Contains(entry, "://") {
			entry = "nats://" + entry
		}
		u, err := url.Parse(entry)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			// The parser's own words quote parts of the URL.
			return "", usageError{fmt.Errorf("%s: entry %d of %d is not a URL such as nats://host:4222 with the scheme nats, tls, ws or wss (the value is not shown, it may hold a password)", a.flag("nats-url"), i+1, len(entries))}
		}
		if u.User != nil {
			a.redact.add(entry)
			if pw, ok := u.User.Password(); ok {
				a.redact.add(pw)
			} else {
				a.redact.add(u.User.Username()) // a token
			}
			if ways := f.auths(a); len(ways) > 0 {
				return "", usageError{fmt.Errorf("%s holds a user, and %s is set too: choose one", a.flag("nats-url"), strings.Join(ways, " and "))}
			}
		}
		entries[i] = entry
	}
	return strings.Join(entries, ","), nil
}

// auths names the ways of authentication that are set; at most one may be.
func (f *natsFlags) auths(a *app) (ways []string) {
	for _, way := range []struct{ flag, value string }{
		{"nats-creds", f.NATSCreds},
		{"nats-nkey", f.NATSNkey},
		{"nats-user", f.NATSUser},
		{"nats-token", f.NATSToken},
		{"nats-token-file", f.NATSTokenFile},
	} {
		if way.value != "" {
			ways = append(ways, a.flag(way.flag))
		}
	}
	return ways
}

// options returns what the flags mean to the client. Files are read once to
// find out now what is wrong with them.
func (f *natsFlags) options(a *app) ([]nats.Option, error) {
	if ways := f.auths(a); len(ways) > 1 {
		return nil, usageError{fmt.Errorf("%s exclude each other: set one", strings.Join(ways, " and "))}
	}
	auth, err := f.authOption(a)
	if err != nil {
		return nil, err
	}
	opts := append(auth, nats.Name(f.connectionName()))
	if (f.NATSTLSCert == "") != (f.NATSTLSKey == "") {
		return nil, usageError{errors.New("--nats-tls-cert and --nats-tls-key belong together: set both or none")}
	}
	for _, o := range []struct {
		flag string
		on   bool
		opt  nats.Option
	}{
		{"nats-tls-cert", f.NATSTLSCert != "", nats.ClientCert(f.NATSTLSCert, f.NATSTLSKey)},
		{"nats-tls-ca", f.NATSTLSCA != "", nats.RootCAs(f.NATSTLSCA)},
		{"nats-tls-first", f.NATSTLSFirst, nats.TLSHandshakeFirst()},
		{"nats-inbox-prefix", f.NATSInboxPrefix != "", nats.CustomInboxPrefix(f.NATSInboxPrefix)},
	} {
		if !o.on {
			continue
		}
		trial := nats.GetDefaultOptions()
		if err := o.opt(&trial); err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", a.flag(o.flag), err)}
		}
		opts = append(opts, o.opt)
	}
	return opts, nil
}

func (f *natsFlags) authOption(a *app) ([]nats.Option, error) {
	switch {
	case f.NATSCreds != "":
		if err := checkCreds(f.NATSCreds); err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", a.flag("nats-creds"), err)}
		}
		return []nats.Option{nats.UserCredentials(f.NATSCreds)}, nil
	case f.NATSNkey != "":
		opt, err := nats.NkeyOptionFromSeed(f.NATSNkey)
		if err != nil {
			return nil, usageError{fmt.Errorf("%s: %s: %w", a.flag("nats-nkey"), f.NATSNkey, err)}
		}
		return []nats.Option{opt}, nil
	case f.NATSUser != "":
		return f.userOption(a)
	case f.NATSPassword != "" || f.NATSPasswordFile != "":
		return nil, usageError{errors.New("--nats-password needs --nats-user: set the user, or the token with --nats-token")}
	case f.NATSTokenFile != "":
		read, err := reader(a, f.NATSTokenFile, "nats-token-file")
		if err != nil {
			return nil, err
		}
		return []nats.Option{nats.TokenHandler(read)}, nil
	case f.NATSToken != "":
		a.redact.add(f.NATSToken)
		return []nats.Option{nats.Token(f.NATSToken)}, nil
	}
	return nil, nil
}

func (f *natsFlags) userOption(a *app) ([]nats.Option, error) {
	if f.NATSPasswordFile == "" {
		if f.NATSPassword != f.NATSUser {
			a.redact.add(f.NATSPassword)
		}
		return []nats.Option{nats.UserInfo(f.NATSUser, f.NATSPassword)}, nil
	}
	read, err := reader(a, f.NATSPasswordFile, "nats-password-file")
	if err != nil {
		return nil, err
	}
	return []nats.Option{nats.UserInfoHandler(func() (string, string) { return f.NATSUser, read() })}, nil
}

// reader returns a function that reads the secret in file anew, so that a
// rotated one is used from the next reconnect on. While the file cannot be
// read the last good secret stays.
func reader(a *app, file, flag string) (func() string, error) {
	last, err := a.secret("", file, flag)
	if err != nil {
		return nil, err
	}
	a.redact.add(last)
	// The client calls it from one goroutine at a time.
	return func() string {
		if secret, err := a.secret("", file, flag); err == nil {
			last = secret
			a.redact.add(secret)
		}
		return last
	}, nil
}

// checkCreds tells whether the client will be able to use the file.
func checkCreds(file string) error {
	content, err := os.ReadFile(file) // #nosec G304 -- the operator names it
	if err != nil {
		return err
	}
	defer clear(content)
	if jwt, err := nkeys.ParseDecoratedJWT(content); err != nil || strings.Count(jwt, ".") != 2 {
		return fmt.Errorf("%s holds no user JWT: create it with nsc generate creds", file)
	}
	key, err := nkeys.ParseDecoratedNKey(content)
	if err != nil {
		return fmt.Errorf("%s holds no seed: create it with nsc generate creds", file)
	}
	key.Wipe()
	return nil
}

func (f *natsFlags) connectionName() string {
	if f.NATSName != "" {
		return f.NATSName
	}
	host, err := os.Hostname()
	if err != nil {
		return applicationName
	}
	return applicationName + "/" + host
}
