package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// addBars draws groups of bars side by side, each with its value above it. gonum's own
// bars begin at 0, which a logarithmic axis does not have.
func (c chart) addBars(p *plot.Plot, colour func(int) color.Color) error {
	const groupWidth, above, least = 0.8, 1.3, 0.5
	lowest, highest := math.Inf(1), 0.0
	for _, b := range c.Bars {
		if len(b.Values) != len(c.Groups) {
			return fmt.Errorf("bars %q have %d values for %d groups", b.Name, len(b.Values), len(c.Groups))
		}
		for i, v := range b.Values {
			if v < 0 || c.LogY && v == 0 {
				return fmt.Errorf("bars %q have the value %g for %s: it must be above 0", b.Name, v, c.Groups[i])
			}
			lowest, highest = min(lowest, v), max(highest, v)
		}
	}
	base := 0.0
	if c.LogY {
		base = lowest * least
	}
	each := groupWidth / float64(len(c.Bars))
	for i, b := range c.Bars {
		labels := plotter.XYLabels{}
		var legend *plotter.Polygon
		for group, v := range b.Values {
			left := float64(group) - groupWidth/2 + each*float64(i)
			right := left + each
			drawn, err := plotter.NewPolygon(plotter.XYs{{X: left, Y: base}, {X: left, Y: v}, {X: right, Y: v}, {X: right, Y: base}})
			if err != nil {
				return fmt.Errorf("bars %q: %w", b.Name, err)
			}
			drawn.Color, drawn.Width = colour(i), 0
			p.Add(drawn)
			legend = drawn
			labels.XYs = append(labels.XYs, plotter.XY{X: left, Y: v})
			labels.Labels = append(labels.Labels, label(v))
		}
		values, err := plotter.NewLabels(labels)
		if err != nil {
			return fmt.Errorf("values of bars %q: %w", b.Name, err)
		}
		values.Offset = vg.Point{X: vg.Points(1), Y: vg.Points(2)} //nolint:mnd // clear of the bar
		p.Add(values)
		if len(c.Bars) > 1 {
			p.Legend.Add(b.Name, legend)
		}
	}
	p.NominalX(c.Groups...)
	p.Y.Min, p.Y.Max = base, highest*above
	return nil
}
