package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/brewer"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

const (
	width, height = 9 * vg.Inch, 4.5 * vg.Inch
	// colours are as many as a palette has that can be told apart, for the lines and bars
	// of a chart; more repeat.
	colours = 9
	palette = "Set1"
)

// draw writes the chart as SVG.
func (c chart) draw(path string, rep *report) error {
	if len(c.Lines) == 0 && len(c.Bars) == 0 {
		return errors.New("the chart has neither lines nor bars")
	}
	p := plot.New()
	p.Title.Text = c.Title
	p.X.Label.Text = c.X
	if c.X == "" {
		p.X.Label.Text = fmt.Sprintf("%s, %d cores, %.10s", rep.Machine.CPU, rep.Machine.Cores, rep.Started)
	} else {
		p.X.Label.Text += fmt.Sprintf("      (%s, %d cores, %.10s)", rep.Machine.CPU, rep.Machine.Cores, rep.Started)
	}
	p.Y.Label.Text = c.Y
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	p.X.Tick.Marker, p.Y.Tick.Marker = linear{}, linear{}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	}
	set, err := brewer.GetPalette(brewer.TypeQualitative, palette, colours)
	if err != nil {
		return err
	}
	for i, l := range c.Lines {
		drawn, err := l.plotter(c)
		if err != nil {
			return fmt.Errorf("line %q: %w", l.Name, err)
		}
		drawn.Color, drawn.Width = set.Colors()[i%colours], vg.Points(2) //nolint:mnd // of the line
		if i >= colours {
			drawn.Dashes = []vg.Length{vg.Points(6), vg.Points(3)} //nolint:mnd // of the dashes
		}
		p.Add(drawn)
		p.Legend.Add(l.Name, drawn)
	}
	if len(c.Bars) > 0 {
		if err := c.addBars(p, func(i int) color.Color { return set.Colors()[i%colours] }); err != nil {
			return err
		}
	}
	return p.Save(width, height, path)
}

// plotter is the line on the chart.
func (l line) plotter(c chart) (*plotter.Line, error) {
	points := make(plotter.XYs, len(l.Points))
	for i, at := range l.Points {
		if c.LogX && at[0] <= 0 || c.LogY && at[1] <= 0 {
			return nil, fmt.Errorf("point %v is not above 0, which a logarithmic axis needs", at)
		}
		points[i] = plotter.XY{X: at[0], Y: at[1]}
	}
	return plotter.NewLine(points)
}

// linear are gonum's ticks, with labels as short as can be.
type linear struct{}

// Ticks implements [plot.Ticker].
func (linear) Ticks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = label(ticks[i].Value)
		}
	}
	return ticks
}

// decades are the ticks of a logarithmic axis: 1, 2 and 5 of each decade.
type decades struct{}

// Ticks implements [plot.Ticker].
func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	const ten = 10
	for decade := math.Pow(ten, math.Floor(math.Log10(least))); decade <= most; decade *= ten {
		for _, digit := range []float64{1, 2, 5} {
			if at := digit * decade; at >= least && at <= most {
				ticks = append(ticks, plot.Tick{Value: at, Label: label(at)})
			}
		}
	}
	return ticks
}

// label is a value as short as can be.
func label(v float64) string {
	const digits = 4
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	if err != nil {
		rounded = v
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}
