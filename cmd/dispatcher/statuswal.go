package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// walReport tells whether dispatchers could be woken by the write-ahead log.
type walReport struct {
	// Publication is "installed", "missing" or "without inserts".
	Publication string `json:"publication"`
	// Problem says what else is missing for this role on this server, and the
	// remedy; empty if nothing is.
	Problem string `json:"problem,omitempty"`
}

const walQuery = `
select coalesce((select case when p.pubinsert and exists (
                               select from pg_publication_tables t
                                where t.pubname = p.pubname and t.schemaname = $1 and t.tablename = 'outbox') then 'installed'
                             else 'without inserts' end
                   from pg_publication p
                  where p.pubname = 'outbox_' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 32)), 'missing'),
       current_setting('wal_level'),
       (select rolreplication or rolsuper from pg_roles where rolname = $2),
       current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots)`

// wal asks for the role that listens, which needs the right.
func (r *statusReader) wal(ctx context.Context, s *status) error {
	var level string
	var replicates *bool
	var free int
	w := &s.Wake.WAL
	if err := r.conn.QueryRow(ctx, walQuery, r.schema, r.listener).Scan(&w.Publication, &level, &replicates, &free); err != nil {
		return err
	}
	switch {
	case level != "logical":
		w.Problem = fmt.Sprintf("wal_level is %s: set wal_level = logical and restart the server", level)
	case replicates != nil && !*replicates:
		w.Problem = fmt.Sprintf("role %q may not replicate: alter role %s replication", r.listener, pgx.Identifier{r.listener}.Sanitize())
	case free <= 0:
		w.Problem = "no replication slot is left, not even for one more dispatcher: raise max_replication_slots"
	}
	return nil
}

// used reports whether the outbox is set up for the WAL wake, in whatever state.
func (w walReport) used() bool { return w.Publication != "missing" }

// words say what the state means.
func (w walReport) words(schema string) string {
	if w.Publication != "installed" {
		return "the inserts are not published; run " + migrateUp(schema) + " --wake=wal"
	}
	if w.Problem != "" {
		return "no dispatcher can follow it: " + w.Problem
	}
	return "dispatchers with --wake=wal or auto can follow it"
}
