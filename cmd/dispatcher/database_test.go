package main

import (
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func migrate(t *testing.T, dsn string) {
	t.Helper()
	for _, f := range []string{"../../migrations/0001_outbox.up.sql", "../../trigger.sql"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		execSQL(t, dsn, string(b))
	}
}

func wrongPassword(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), "canary-wrong-password")
	return u.String()
}

func newDatabase(t *testing.T) string {
	t.Helper()
	name := pgx.Identifier{"db" + randomName()}
	execSQL(t, cluster.DSN("postgres"), "create database "+name.Sanitize())
	dsn := cluster.DSN(name[0])
	migrate(t, dsn)
	return dsn
}
