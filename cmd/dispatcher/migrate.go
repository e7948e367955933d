package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-dispatcher/outbox"
)

// migrateCmd is "dispatcher migrate".
type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Create the outbox, or bring it up to date. Safe to run several times, and at the same time."`
	Down   migrateDownCmd   `cmd:"" help:"Undo migrations."`
	Status migrateStatusCmd `cmd:"" help:"Show which migrations were applied."`
	Print  migratePrintCmd  `cmd:"" help:"Print the SQL of \"up\" for psql, to be run once, where there is no outbox yet."`
}

// migrateFlags say how patiently to migrate.
type migrateFlags struct {
	LockTimeout time.Duration `group:"Migrating" range:"1ms..1h" default:"${lock_timeout}" help:"Longest single wait for a lock on the table; producers queue behind that wait. The migration gives up then, lets them pass, and tries again."`
	LockWait    time.Duration `group:"Migrating" range:"0s..24h" default:"${lock_wait}" help:"Longest wait altogether, for locks and for other migrators."`
}

func (f migrateFlags) options(schema string) outbox.MigrateOptions {
	// To wait not at all is the shortest wait that is not the default's zero.
	return outbox.MigrateOptions{Schema: schema, LockTimeout: f.LockTimeout, LockWait: max(f.LockWait, time.Nanosecond)}
}

// withConnection runs f on a connection to the database.
func withConnection(ctx context.Context, a *app, db *databaseFlags, f func(*pgx.Conn) error) error {
	cfg, err := db.connConfig(a, textLogger(a.stderr), migrateSuffix)
	if err != nil {
		return err
	}
	conn, err := db.connect(ctx, a, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

type migrateUpCmd struct {
	databaseFlags
	migrateFlags
	wakeFlags
}

// wakeFlags are those of the commands that install what wakes the dispatchers.
type wakeFlags struct {
	Wake      outbox.Wake `group:"Migrating" enum:"notify,wal,auto,poll" default:"notify" help:"What wakes the dispatchers. notify: an insert trigger. wal: a publication, for dispatchers with --wake=wal. auto: both, for dispatchers with --wake=auto. poll: neither. What another choice needs is removed."`
	NoTrigger bool        `group:"Migrating" help:"Leave trigger and publication as they are."`
}

// Run migrates and prints one line for each step.
func (c *migrateUpCmd) Run(ctx context.Context, a *app) error {
	return withConnection(ctx, a, &c.databaseFlags, func(conn *pgx.Conn) error {
		options := c.options(c.Schema)
		options.Wake, options.NoTrigger = c.Wake, c.NoTrigger
		applied, err := outbox.Migrate(ctx, conn, options)
		return report(a.stdout, "applied", applied, fmt.Sprintf("schema %q is up to date", c.Schema), err)
	})
}

// report prints the steps that were taken, also those before an error.
func report(w io.Writer, verb string, steps []outbox.Migration, nothing string, err error) error {
	for _, m := range steps {
		fmt.Fprintf(w, "%s %s\n", verb, m.Name)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if len(steps) == 0 {
		fmt.Fprintln(w, nothing)
	}
	return nil
}

type migrateDownCmd struct {
	databaseFlags
	migrateFlags
	To  int  `noenv:"" required:"" placeholder:"VERSION" help:"Version to go back to; 0 removes the outbox."`
	Yes bool `noenv:"" help:"Needed with --to=0: yes, remove all tasks, sent or not."`
}

// Run undoes migrations and prints one line for each.
func (c *migrateDownCmd) Run(ctx context.Context, a *app) error {
	if c.To == 0 && !c.Yes {
		return usageError{fmt.Errorf("--to=0 removes the outbox in schema %q with every task in it: add --yes if that is meant", c.Schema)}
	}
	return withConnection(ctx, a, &c.databaseFlags, func(conn *pgx.Conn) error {
		undone, err := outbox.MigrateDown(ctx, conn, c.To, c.options(c.Schema))
		return report(a.stdout, "undid", undone, "nothing to undo", err)
	})
}

type migrateStatusCmd struct {
	databaseFlags
	JSON bool `noenv:"" help:"Print JSON."`
}

// migrationState is one line of "dispatcher migrate status --json".
type migrationState struct {
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // null: not applied
}

// Run prints which migrations were applied.
func (c *migrateStatusCmd) Run(ctx context.Context, a *app) error {
	return withConnection(ctx, a, &c.databaseFlags, func(conn *pgx.Conn) error {
		all, err := outbox.MigrationStatus(ctx, conn, outbox.MigrateOptions{Schema: c.Schema})
		if err != nil {
			return fmt.Errorf("migration status: %w", err)
		}
		states := make([]migrationState, 0, len(all))
		for _, m := range all {
			s := migrationState{Version: m.Version, Name: m.Name}
			if !m.AppliedAt.IsZero() {
				at := m.AppliedAt.UTC()
				s.AppliedAt = &at
			}
			states = append(states, s)
		}
		if c.JSON {
			return writeJSON(a.stdout, states)
		}
		var b bytes.Buffer
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, s := range states {
			when := "pending"
			if s.AppliedAt != nil {
				when = "applied " + s.AppliedAt.Format(time.RFC3339)
			}
			fmt.Fprintf(t, "%s\t%s\n", s.Name, when)
		}
		_ = t.Flush() // to a buffer
		_, err = b.WriteTo(a.stdout)
		return err
	})
}

type migratePrintCmd struct {
	wakeFlags
	Schema string `group:"Database" default:"${schema}" help:"Schema that shall hold the outbox."`
}

// Run prints SQL for psql, without a database.
func (c *migratePrintCmd) Run(a *app) error {
	text, err := outbox.MigrationSQL(outbox.MigrateOptions{Schema: c.Schema, Wake: c.Wake, NoTrigger: c.NoTrigger})
	if err != nil {
		return usageError{err}
	}
	_, err = io.WriteString(a.stdout, text)
	return err
}

// migrateUp is the command for a shell that brings an outbox up to date.
func migrateUp(schema string) string {
	return "dispatcher migrate up --schema " + shellWord(schema)
}

// shellWord quotes s for a shell, if it must be.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// schemaVersion is the newest migration that was applied; 0 if somebody else's
// tool applied them, without a record, or if the role may not read the records.
func schemaVersion(ctx context.Context, conn *pgx.Conn, schema string) (int, error) {
	all, err := outbox.MigrationStatus(ctx, conn, outbox.MigrateOptions{Schema: schema})
	if pgCode(err) == insufficientPrivilege {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	version := 0
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			version = m.Version
		}
	}
	return version, nil
}

// outdated says what is wrong with a database whose records lack migrations.
// Without any record another tool is in charge.
func outdated(schema string, all []outbox.Migration) error {
	var applied, missing int
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			missing++
		} else {
			applied++
		}
	}
	if applied == 0 || missing == 0 {
		return nil
	}
	return fmt.Errorf("schema %q is at version %d, this program needs version %d: run %s",
		schema, applied, applied+missing, migrateUp(schema))
}
