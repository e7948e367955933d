package main

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestPoolSize(t *testing.T) {
	for dsn, want := range map[string]int32{
		"host=h":                   67,
		"host=h pool_max_conns=66": 66,
		"host=h pool_max_conns=90": 90,
	} {
		f := databaseFlags{DatabaseURL: dsn}
		cfg, err := f.poolConfig(testApp(), silent(), 64)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.MaxConns != want {
			t.Errorf("%s: %d connections, want %d", dsn, cfg.MaxConns, want)
		}
		if cfg.ShouldPing(t.Context(), pgxpool.ShouldPingParams{IdleDuration: patience}) {
			t.Error("an idle connection is pinged before use")
		}
	}
}

func TestConnectionSettings(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgserver.Options{TCP: true})
	dsn := server.TCPDSN("postgres")
	for name, c := range map[string]struct {
		dsn, suffix, setting, want string
	}{
		"application name":          {dsn, "", "application_name", "outbox-dispatcher my_app"},
		"application name, listen":  {dsn, listenSuffix, "application_name", "outbox-dispatcher my_app listen"},
		"application name of users": {dsn + "&application_name=mine", "", "application_name", "mine my_app"},
		"keepalive idle":            {dsn, "", "tcp_keepalives_idle", "10"},
		"keepalive interval":        {dsn, "", "tcp_keepalives_interval", "5"},
		"keepalive count":           {dsn, "", "tcp_keepalives_count", "3"},
		"user timeout":              {dsn, "", "tcp_user_timeout", "20000"},
		"keepalive of users":        {dsn + "&tcp_keepalives_idle=33", "", "tcp_keepalives_idle", "33"},
		"pool settings are ours":    {dsn + "&pool_max_conns=3", "", "application_name", "outbox-dispatcher my_app"},
	} {
		t.Run(name, func(t *testing.T) {
			f := databaseFlags{DatabaseURL: c.dsn, Schema: "my_app"}
			cfg, err := f.connConfig(testApp(), silent(), c.suffix)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.Background()) }()
			if got := pgtest.Value[string](t, conn, "select current_setting($1)", c.setting); got != c.want {
				t.Errorf("%s is %q, want %q", c.setting, got, c.want)
			}
		})
	}
}

// A server that does not know a setting is told of, once, and used.
func TestRefusedKeepaliveIsLogged(t *testing.T) {
	serverTCPBefore := serverTCP
	serverTCP = append(slices.Clip(serverTCP), struct{ name, value string }{"no_such_setting", "1"})
	defer func() { serverTCP = serverTCPBefore }()
	var log bytes.Buffer
	f := databaseFlags{DatabaseURL: pgtest.NewEmptyDB(t)}
	cfg, err := f.connConfig(testApp(), slog.New(slog.NewTextHandler(&log, nil)), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatalf("not used: %v", err)
		}
		_ = conn.Close(t.Context())
	}
	if n := strings.Count(log.String(), "no_such_setting"); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

func TestListenConfig(t *testing.T) {
	db := databaseFlags{DatabaseURL: "host=pooler", Schema: "my_app"}
	for flag, want := range map[string]string{"": "pooler", "host=direct pool_max_conns=4": "direct"} {
		f := listenFlags{ListenURL: flag}
		cfg, err := f.listenConfig(testApp(), silent(), &db, listenSuffix)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != want || cfg.RuntimeParams["pool_max_conns"] != "" || cfg.RuntimeParams["application_name"] != "outbox-dispatcher my_app listen" {
			t.Errorf("%q: host %s, %v", flag, cfg.Host, cfg.RuntimeParams)
		}
	}
	f := listenFlags{ListenURL: "port=x"}
	if _, err := f.listenConfig(testApp(), silent(), &db, ""); err == nil || !strings.HasPrefix(err.Error(), "--listen-url: ") {
		t.Errorf("a bad --listen-url: %v", err)
	}
}
