package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the outcome of a scenario: for people as a table, for programs as
// JSON and as a last line of key=value pairs.
type report struct {
	Scenario string    `json:"scenario"`
	Started  time.Time `json:"started"`
	// Settings are what was measured, in the order of importance.
	Settings []setting `json:"settings"`
	Machine  machine   `json:"machine"`
	Rows     []row     `json:"rows"`
	Notes    []string  `json:"notes,omitempty"`
	Keys     []figure  `json:"keys"`
	Charts   []chart   `json:"charts,omitempty"`
}

// setting is one setting of the scenario.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// row is one line of the table: what was measured, once per run.
type row struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	Runs series `json:"runs"`
}

// figure is one pair of the last line.
type figure struct {
	Key   string  `json:"key"`
	Value float64 `json:"value"`
}

func newReport(scenario string) *report {
	return &report{Scenario: scenario, Started: time.Now().UTC()}
}

func (r *report) setting(name string, value any) {
	r.Settings = append(r.Settings, setting{name, fmt.Sprint(value)})
}

func (r *report) row(name, unit string, runs series) {
	r.Rows = append(r.Rows, row{name, unit, runs})
}

func (r *report) note(format string, a ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, a...))
}

func (r *report) key(name string, value float64) {
	r.Keys = append(r.Keys, figure{name, value})
}

// target notes whether a figure is where the design wants it.
func (r *report) target(key string, value float64, met bool, want string) {
	verdict := "met"
	if !met {
		verdict = "MISSED"
	}
	r.note("target %s %s: %s (%s)", key, want, verdict, number(value))
}

// print writes the report; its last line is the pairs.
func (r *report) print(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s  %s\n\n", r.Scenario, r.Started.Format(time.DateTime+" UTC"))
	for _, s := range append(r.Machine.settings(), r.Settings...) {
		fmt.Fprintf(&out, "%-12s %s\n", s.Name, s.Value)
	}
	out.WriteByte('\n')
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "median\tmin..max\tunit\truns\t \t\n")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s..%s\t%s\t%d\t", number(row.Runs.median()),
			number(slices.Min(row.Runs)), number(slices.Max(row.Runs)), row.Unit, len(row.Runs))
		// The name is last, so that it is not aligned to the right.
		fmt.Fprintf(table, " \t%s\n", row.Name)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	out.WriteByte('\n')
	for _, n := range r.Notes {
		fmt.Fprintf(&out, "%s\n", n)
	}
	fmt.Fprintf(&out, "\n%s\n", r.line())
	_, err := io.WriteString(w, out.String())
	return err
}

// line is the last line of the output.
func (r *report) line() string {
	pairs := []string{"scenario=" + r.Scenario}
	for _, k := range r.Keys {
		pairs = append(pairs, k.Key+"="+number(k.Value))
	}
	return strings.Join(pairs, " ")
}

func (r *report) writeJSON(path string) (err error) {
	f, err := os.Create(path) // #nosec G304 -- the user names it
	if err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	enc := json.NewEncoder(f)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	return nil
}

// number writes a figure with four digits that mean something, never with an
// exponent, so that every reader of the last line can parse it.
func number(v float64) string {
	const digits = 4
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	if err != nil {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}
