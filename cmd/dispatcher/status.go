package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// statusCmd is "dispatcher status".
type statusCmd struct {
	databaseFlags
	listenFlags
	JSON bool `noenv:"" help:"Print JSON."`
}

// status is what "dispatcher status --json" prints. Its names are a contract.
type status struct {
	Schema string `json:"schema"`
	// Version is 0 if it cannot be told: another tool applied the
	// migrations, or the role may not read outbox_migration.
	Version int `json:"schema_version"`
	// Source begins every message id.
	Source string    `json:"source"`
	Tasks  taskCount `json:"tasks"`
	// OldestDueSeconds is for how long the oldest due task has been due; null
	// when none is.
	OldestDueSeconds *float64 `json:"oldest_due_seconds"`
	// NextDueSeconds is the time until the next task that is not due yet;
	// null when there is none.
	NextDueSeconds *float64   `json:"next_due_seconds"`
	Wake           wakeReport `json:"wake"`
	Dispatchers    sessions   `json:"dispatchers"`
}

// taskCount counts the tasks by state; each task is in one of them.
type taskCount struct {
	Due       count `json:"due"`       // to be sent now, also after a refusal
	Scheduled count `json:"scheduled"` // to be sent later, not tried yet
	Retrying  count `json:"retrying"`  // refused, to be tried again later
	Dead      count `json:"dead"`
	Sent      count `json:"sent"` // and not pruned yet
}

// count is a number and how far it can be trusted.
type count struct {
	Count int64 `json:"count"`
	// How is "exact", "at least" where counting stopped at a limit, or
	// "estimate" by the statistics of the database.
	How string `json:"how"`
}

const (
	exact    = "exact"
	atLeast  = "at least"
	estimate = "estimate"
)

// String is the count with thousands apart.
func (c count) String() string {
	digits := strconv.FormatInt(c.Count, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return map[string]string{atLeast: "≥ ", estimate: "≈ "}[c.How] + digits
}

// wakeReport tells whether wakes can arrive, seen from here.
type wakeReport struct {
	// Trigger is "enabled", "disabled", "missing", "older version" (it costs
	// the writers more) or "unknown version".
	Trigger string `json:"trigger"`
	Mask    mask   `json:"mask"`
	// WAL tells of the wake by the write-ahead log.
	WAL walReport `json:"wal"`
	// RoundTripMS is how long a test notification took; null if none came.
	RoundTripMS *float64 `json:"round_trip_ms"`
	// Problem says why none came.
	Problem string `json:"problem,omitempty"`
	// QueueUsage is how full the server's notification queue is, 0 to 1. At
	// 1 the commits of producers fail.
	QueueUsage float64 `json:"queue_usage"`
}

// sessions are those of dispatchers of this outbox in the database, by
// application name.
type sessions struct {
	// Listening is the number of LISTEN sessions: one for each dispatcher
	// that runs with --wake=notify or auto, none for one with --wake=poll.
	Listening int `json:"listening"`
	// Following is the number of walsenders for dispatchers with --wake=wal, or auto
	// while notifications do not arrive, of any outbox of the database.
	Following int `json:"following"`
	// Connections are all other sessions of dispatchers.
	Connections int `json:"connections"`
}

func (s sessions) String() string {
	switch {
	case s.Following > 0:
		return fmt.Sprintf("%d following\tthe log of this database; %d listen; %d other connections", s.Following, s.Listening, s.Connections)
	case s.Listening == 0 && s.Connections == 0:
		return "none connected\t"
	case s.Listening == 0:
		return fmt.Sprintf("connected\tnone listens: --wake=poll, or the wake is broken; %d connections", s.Connections)
	}
	return fmt.Sprintf("%d listening\t%d other connections", s.Listening, s.Connections)
}

// Run reads and prints the status.
func (c *statusCmd) Run(ctx context.Context, a *app) error {
	s, err := c.read(ctx, a, textLogger(a.stderr))
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a.stdout, s)
	}
	var b bytes.Buffer
	s.print(&b)
	_, err = b.WriteTo(a.stdout)
	return err
}

func (s *status) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	version := "unknown"
	if s.Version > 0 {
		version = strconv.Itoa(s.Version)
	}
	fmt.Fprintf(t, "outbox\t%s\tschema version %s, source %s\n", s.Schema, version, s.Source)
	fmt.Fprintf(t, "due\t%s\tto be sent now%s\n", s.Tasks.Due, ago("; the oldest has been due for ", s.OldestDueSeconds))
	fmt.Fprintf(t, "scheduled\t%s\tto be sent later, not tried yet\n", s.Tasks.Scheduled)
	fmt.Fprintf(t, "retrying\t%s\trefused by the broker, to be tried again later\n", s.Tasks.Retrying)
	fmt.Fprintf(t, "dead\t%s\tgiven up; last_error tells why\n", s.Tasks.Dead)
	fmt.Fprintf(t, "sent\t%s\tand not deleted yet\n", s.Tasks.Sent)
	fmt.Fprintf(t, "next due\t%s\n", cmp.Or(ago("in ", s.NextDueSeconds), "-"))
	fmt.Fprintf(t, "dispatchers\t%s\n", s.Dispatchers)
	fmt.Fprintf(t, "trigger\t%s\t%s\n", s.Wake.Trigger, s.triggerRemedy())
	if s.Wake.WAL.used() {
		fmt.Fprintf(t, "publication\t%s\t%s\n", s.Wake.WAL.Publication, s.Wake.WAL.words(s.Schema))
	}
	fmt.Fprintf(t, "mask\t%s\t%s\n", s.Wake.Mask.State, s.Wake.Mask.words(s.Schema))
	if s.Wake.RoundTripMS != nil {
		fmt.Fprintf(t, "notifications\tarrive\tround trip %.1f ms, queue %.1f %% full\n", *s.Wake.RoundTripMS, 100*s.Wake.QueueUsage)
	} else {
		fmt.Fprintf(t, "notifications\tmissing\t%s; queue %.1f %% full\n", s.Wake.Problem, 100*s.Wake.QueueUsage)
	}
	_ = t.Flush() // to a buffer
}

// ago is "" without a time.
func ago(what string, seconds *float64) string {
	if seconds == nil {
		return ""
	}
	d := time.Duration(*seconds * float64(time.Second))
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return what + d.String()
}
