package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

const (
	// connectTimeout applies where the user named none: the driver's default
	// of two minutes is an outage of its own when a host does not answer.
	connectTimeout = 5 * time.Second
	// userTimeout is how long sent bytes may stay unacknowledged on a TCP
	// connection. The operating system's own limit is about 15 minutes.
	userTimeout = 20 * time.Second
)

// keepAlive finds a vanished peer in 25 s; the operating system's defaults
// take two hours.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// serverTCP makes the server do the same, so that the row locks of a
// vanished dispatcher are given up. They are set after connecting: poolers
// refuse startup parameters that they do not know.
var serverTCP = []struct{ name, value string }{
	{"tcp_keepalives_idle", "10"},
	{"tcp_keepalives_interval", "5"},
	{"tcp_keepalives_count", "3"},
	{"tcp_user_timeout", "20000"},
}

// Error codes of PostgreSQL that mean something to us.
const (
	insufficientPrivilege = "42501"
	undefinedTable        = "42P01"
	queryCanceled         = "57014"
	lockNotAvailable      = "55P03"
)

// pgCode is the code of an error of the server, "" for any other.
func pgCode(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// databaseFlags say where the outbox is.
type databaseFlags struct {
	DatabaseURL     string `group:"Database" xor:"database-url" also:"DATABASE_URL" placeholder:"URL" help:"PostgreSQL as URL or key=value string; pool_max_conns and the other parameters of pgx are understood. Default: the PG* variables of libpq."`
	DatabaseURLFile string `group:"Database" xor:"database-url" placeholder:"FILE" help:"File that holds --database-url."`
	Schema          string `group:"Database" default:"${schema}" help:"Schema that holds the outbox."`
}

// listenFlags say where LISTEN works.
type listenFlags struct {
	ListenURL     string `group:"Database" xor:"listen-url" placeholder:"URL" help:"PostgreSQL for LISTEN or replication, when --database-url leads through a transaction pooler, which swallows notifications. Default: --database-url."`
	ListenURLFile string `group:"Database" xor:"listen-url" placeholder:"FILE" help:"File that holds --listen-url."`
}

const (
	// claimPoolConns are those that dispatcher.Config asks for beside one for
	// each worker: two for looking at the table.
	claimPoolConns = 2
	// metricsPoolConns is one for the metrics, who can wait for a worker's.
	metricsPoolConns = 1
)

// poolConfig returns the settings of a pool with enough connections for the
// workers, unless the user fixed pool_max_conns; too few of them are refused.
func (f *databaseFlags) poolConfig(a *app, logger *slog.Logger, workers int) (*pgxpool.Config, error) {
	dsn, err := a.secret(f.DatabaseURL, f.DatabaseURLFile, "database-url-file")
	if err != nil {
		return nil, err
	}
	cfg, err := parseDSN(a, "database-url", dsn)
	if err != nil {
		return nil, err
	}
	if plain, err := pgx.ParseConfig(dsn); err == nil && plain.RuntimeParams["pool_max_conns"] == "" {
		cfg.MaxConns = max(cfg.MaxConns, int32(workers+claimPoolConns+metricsPoolConns)) // #nosec G115 -- at most 64 workers and a few
	}
	if need := workers + claimPoolConns; int(cfg.MaxConns) < need {
		return nil, usageError{fmt.Errorf("%s: pool_max_conns is %d, and %d workers need %d connections: raise it, or lower --workers",
			a.flag("database-url"), cfg.MaxConns, workers, need)}
	}
	dispatcher.TunePool(cfg)
	prepare(cfg.ConnConfig, logger, f.Schema, "")
	return cfg, nil
}

// libpqVariables say by themselves where a database is.
var libpqVariables = []string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE", "PGSERVICEFILE"}

// unset tells that nothing says where the database is: the defaults of libpq
// are taken then, which are seldom meant.
func (f *databaseFlags) unset(a *app) bool {
	return f.DatabaseURL == "" && f.DatabaseURLFile == "" && a.env != nil &&
		!slices.ContainsFunc(libpqVariables, func(name string) bool { return a.env.values[name] != "" })
}

// noDatabase is what is said where databaseFlags.unset tells.
const noDatabase = "neither --database-url nor DATABASE_URL is set"

// connect opens a single connection for a command that ends soon.
func (f *databaseFlags) connect(ctx context.Context, a *app, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	switch {
	case err == nil:
		return conn, nil
	case f.unset(a):
		return nil, fmt.Errorf("connect to the database: %w: %s", err, noDatabase)
	}
	return nil, fmt.Errorf("connect to the database: %w", err)
}

// connConfig returns the settings of a single connection; suffix is added to
// the application name.
func (f *databaseFlags) connConfig(a *app, logger *slog.Logger, suffix string) (*pgx.ConnConfig, error) {
	dsn, err := a.secret(f.DatabaseURL, f.DatabaseURLFile, "database-url-file")
	if err != nil {
		return nil, err
	}
	return connConfig(a, logger, "database-url", dsn, f.Schema, suffix)
}

// listenConfig returns the settings of the LISTEN connection.
func (f *listenFlags) listenConfig(a *app, logger *slog.Logger, db *databaseFlags, suffix string) (*pgx.ConnConfig, error) {
	dsn, err := a.secret(f.ListenURL, f.ListenURLFile, "listen-url-file")
	if err != nil {
		return nil, err
	}
	if dsn == "" {
		return db.connConfig(a, logger, suffix)
	}
	return connConfig(a, logger, "listen-url", dsn, db.Schema, suffix)
}

func connConfig(a *app, logger *slog.Logger, flag, dsn, schema, suffix string) (*pgx.ConnConfig, error) {
	// The pool's parser takes the pool_* parameters out, which the server
	// would not know.
	cfg, err := parseDSN(a, flag, dsn)
	if err != nil {
		return nil, err
	}
	prepare(cfg.ConnConfig, logger, schema, suffix)
	// Prepared statements do not pay for the few of a single connection, and
	// fail behind an old transaction pooler.
	if cfg.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return cfg.ConnConfig, nil
}

// dsnMark stands in the driver's errors between the quoted string and the fault.
const dsnMark = "`: "

// urlScheme finds what is before :// at the start of a URL.
var urlScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// parseDSN is pgxpool.ParseConfig with errors that cannot quote a password.
func parseDSN(a *app, flag, dsn string) (*pgxpool.Config, error) {
	if scheme := urlScheme.FindString(dsn); scheme != "" && scheme != "postgres://" && scheme != "postgresql://" {
		a.redact.add(dsn)
		return nil, usageError{fmt.Errorf("%s: a URL must begin with postgres:// or postgresql:// (the value is not shown, it may hold a password)", a.flag(flag))}
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil || cfg.ConnConfig.Password != "" {
		a.redact.add(dsn)
	}
	if err == nil {
		if pw := cfg.ConnConfig.Password; pw != cfg.ConnConfig.User && pw != cfg.ConnConfig.Database {
			a.redact.add(pw)
		}
		return cfg, nil
	}
	why := "it cannot be read"
	// Before the mark the driver quotes the string itself, after it says what
	// is wrong without quoting.
	if i := strings.LastIndex(err.Error(), dsnMark); i >= 0 {
		why = err.Error()[i+len(dsnMark):]
	}
	if strings.Contains(dsn, "://") {
		why += "; in a URL the characters / @ : % # of a password are written %2F %40 %3A %25 %23"
	}
	return nil, usageError{fmt.Errorf("%s: %s (the value is not shown, it may hold a password)", a.flag(flag), why)}
}

// prepare sets what every connection of ours has.
func prepare(cc *pgx.ConnConfig, logger *slog.Logger, schema, suffix string) {
	chosen := cc.RuntimeParams["application_name"]
	cc.RuntimeParams["application_name"] = sessionName(cmp.Or(chosen, applicationName), schema, suffix)
	cc.ConnectTimeout = cmp.Or(cc.ConnectTimeout, connectTimeout)
	dialer := &net.Dialer{Timeout: cc.ConnectTimeout, KeepAliveConfig: keepAlive, Control: setUserTimeout}
	cc.DialFunc = dialer.DialContext

	var statements strings.Builder
	for _, p := range serverTCP {
		if _, chosen := cc.RuntimeParams[p.name]; !chosen {
			fmt.Fprintf(&statements, "set %s = %s;", p.name, p.value)
		}
	}
	var warn sync.Once
	cc.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, statements.String()).ReadAll()
		if err == nil {
			return nil
		}
		if conn.IsClosed() {
			return fmt.Errorf("set TCP keepalives: %w", err)
		}
		warn.Do(func() {
			logger.Warn("the database refused TCP keepalive settings: the rows of a vanished dispatcher stay locked for longer", "error", err)
		})
		return nil
	}
}
