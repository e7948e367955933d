package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// chart is a picture of a report, which --plot draws.
type chart struct {
	// Name is the file's, without its ending.
	Name  string `json:"name"`
	Title string `json:"title"`
	X     string `json:"x"` // what the axis shows, with its unit
	Y     string `json:"y"`
	// LogX and LogY: the axis is logarithmic; it then has no values of 0 or less.
	LogX  bool   `json:"log_x,omitempty"`
	LogY  bool   `json:"log_y,omitempty"`
	Lines []line `json:"lines,omitempty"`
	// Bars are groups side by side, one for each of Groups.
	Bars   []bars   `json:"bars,omitempty"`
	Groups []string `json:"groups,omitempty"`
}

// line is one line of a chart.
type line struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
}

// bars are the bars of one colour, one in each group.
type bars struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
}

// chart adds a picture to the report.
func (r *report) chart(c chart) { r.Charts = append(r.Charts, c) }

// plot draws the pictures into a folder, by a program that is a module of its own. It
// tells the files' names.
func (r *report) plot(ctx context.Context, folder string, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "outbox-bench-report-")
	if err != nil {
		return fmt.Errorf("make a folder for the report: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "report.json")
	if err := r.writeJSON(path); err != nil {
		return err
	}
	if err := runModule(ctx, "plot", []string{path, folder}, out, out); err != nil {
		return fmt.Errorf("draw the charts: %w", err)
	}
	return nil
}
