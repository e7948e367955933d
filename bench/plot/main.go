// Plot draws the charts of a report of the benchmark, as SVG. It is a module of its own,
// so that nobody else has its dependencies; "bench --plot DIR" runs it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// report is what is drawn of the benchmark's JSON.
type report struct {
	Scenario string  `json:"scenario"`
	Started  string  `json:"started"`
	Machine  machine `json:"machine"`
	Charts   []chart `json:"charts"`
}

// machine tells on what the figures were taken.
type machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
}

// chart is one picture, as package scenario describes it.
type chart struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	LogX   bool     `json:"log_x"`
	LogY   bool     `json:"log_y"`
	Lines  []line   `json:"lines"`
	Bars   []bars   `json:"bars"`
	Groups []string `json:"groups"`
}

type line struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
}

type bars struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "plot: %v\n", err)
		os.Exit(1)
	}
}

// run draws the charts of the report args[0] into the folder args[1], and prints the
// files' names.
func run(args []string, stdout io.Writer) error {
	const wanted = 2
	if len(args) != wanted {
		return errors.New("usage: plot REPORT.json FOLDER")
	}
	source, folder := args[0], args[1]
	rep, err := read(source)
	if err != nil {
		return err
	}
	if len(rep.Charts) == 0 {
		return fmt.Errorf("%s has no charts: scenario %q draws none", source, rep.Scenario)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { // #nosec G301 -- pictures are for everybody
		return fmt.Errorf("make the folder for the charts: %w", err)
	}
	for _, c := range rep.Charts {
		if c.Name == "" || filepath.Base(c.Name) != c.Name {
			return fmt.Errorf("%s has a chart called %q, which is no name of a file", source, c.Name)
		}
		path := filepath.Join(folder, c.Name+".svg")
		if err := c.draw(path, rep); err != nil {
			return fmt.Errorf("draw %s: %w", path, err)
		}
		fmt.Fprintln(stdout, path)
	}
	return nil
}

func read(path string) (*report, error) {
	text, err := os.ReadFile(path) // #nosec G304 -- the user names it
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var rep report
	if err := json.Unmarshal(text, &rep); err != nil {
		return nil, fmt.Errorf("%s is no report of the benchmark: %w", path, err)
	}
	return &rep, nil
}
