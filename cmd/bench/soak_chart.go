package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// These are the dimensions of the chart in pixels, and the position of the curves within a panel.
const (
	chartWidth, panelHeight = 900, 220
	plotLeft, plotRight     = 70, 880
	plotTop, plotBottom     = 34, 180
)

// chartStyle is readable on light and dark backgrounds. Color-blind readers can also distinguish the curves.
const chartStyle = `
svg { --paper: #ffffff; --ink: #1f2328; --faint: #d0d7de; --held: #0072b2; --c0: #0072b2; --c1: #c2570c; --c2: #007a5a; --c3: #a3468a; --c4: #6b7280; }
@media (prefers-color-scheme: dark) {
	svg { --paper: #0d1117; --ink: #e6edf3; --faint: #30363d; --held: #56b4e9; --c0: #56b4e9; --c1: #ff9f45; --c2: #2fc99a; --c3: #e58fce; --c4: #9aa4b2; }
}
.paper { fill: var(--paper); } .held { fill: var(--held); opacity: 0.14; }
text { font: 12px system-ui, sans-serif; fill: var(--ink); } .title { font-size: 13px; font-weight: 600; }
.grid { stroke: var(--faint); stroke-width: 1; } polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); }
.dashed { stroke-dasharray: 5 3; } .end { text-anchor: end; } .middle { text-anchor: middle; }
`

// panel is one set of axes.
type panel struct {
	title  string // includes the unit
	log    bool   // use a logarithmic axis
	curves []curve
}

type curve struct {
	name  string
	class string
	at    func(soakSample) float64
}

// panels returns the panels of the chart.
func (w *soakWatch) panels() []panel {
	sizes, dead := panel{title: "size, MB (dashed: indexes)", log: true}, panel{title: "dead tuples (none: 1)", log: true}
	for i, table := range w.tables {
		class := fmt.Sprintf("c%d", i)
		sizes.curves = append(sizes.curves,
			curve{table, class, func(s soakSample) float64 { return float64(s.Tables[table].Heap) / 1e6 }},
			curve{"", class + " dashed", func(s soakSample) float64 { return float64(s.Tables[table].Index) / 1e6 }})
		dead.curves = append(dead.curves, curve{table, class, func(s soakSample) float64 { return float64(max(s.Tables[table].Dead, 1)) }})
	}
	latency := panel{title: "due to start, ms", log: true, curves: []curve{
		{"p50", "c0", func(s soakSample) float64 { return s.P50 }},
		{"p99", "c1", func(s soakSample) float64 { return s.P99 }},
	}}
	if w.poll != nil {
		latency.title = "due to start; a claim that finds nothing: ms"
		latency.curves = append(latency.curves, curve{"claim", "c2", func(s soakSample) float64 { return s.Poll }})
	}
	return []panel{{title: "throughput, jobs/s", curves: []curve{{"begun", "c0", func(s soakSample) float64 { return s.Rate }}}}, latency, sizes, dead}
}

// soakChart draws the samples as an SVG, with one panel below another and a common time axis.
func soakChart(w *soakWatch) []byte {
	var out bytes.Buffer
	panels := w.panels()
	height := panelHeight*len(panels) + 10
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img">`+"\n", chartWidth, height)
	fmt.Fprintf(&out, "<title>%s</title>\n<style>%s</style>\n", escaped(w.title), chartStyle)
	fmt.Fprintf(&out, `<rect class="paper" width="%d" height="%d"/>`+"\n", chartWidth, height)
	for i, p := range panels {
		fmt.Fprintf(&out, `<g transform="translate(0 %d)">`+"\n", i*panelHeight)
		p.draw(&out, w)
		fmt.Fprintln(&out, "</g>")
	}
	fmt.Fprintln(&out, "</svg>")
	return out.Bytes()
}

func (p panel) draw(out *bytes.Buffer, w *soakWatch) {
	length := w.length.Seconds()
	x := func(seconds float64) float64 { return plotLeft + (plotRight-plotLeft)*seconds/length }
	y, ticks := p.scale(w.samples)

	from, to := heldSpan(w.samples)
	if to > from {
		fmt.Fprintf(out, `<rect class="held" x="%.1f" y="%d" width="%.1f" height="%d"/>`+"\n", x(from), plotTop, x(to)-x(from), plotBottom-plotTop)
		fmt.Fprintf(out, `<text class="middle" x="%.1f" y="%d">snapshot held</text>`+"\n", x((from+to)/2), plotTop+14)
	}
	fmt.Fprintf(out, `<text class="title" x="%d" y="20">%s</text>`+"\n", plotLeft, escaped(p.title))
	for _, tick := range ticks {
		fmt.Fprintf(out, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/>`+"\n", plotLeft, plotRight, y(tick))
		fmt.Fprintf(out, `<text class="end" x="%d" y="%.1f">%s</text>`+"\n", plotLeft-6, y(tick)+4, escaped(number(tick)))
	}
	unit, step := 1.0, niceStep(length/10)
	name := "s"
	if length >= 300 {
		unit, step, name = 60, 60*niceStep(length/60/10), "min"
	}
	if w.hours > 0 {
		unit = length / w.hours
		step, name = unit*niceStep(w.hours/10), "h"
	}
	for t := 0.0; t <= length*1.001; t += step {
		fmt.Fprintf(out, `<line class="grid" x1="%.1f" x2="%.1[1]f" y1="%d" y2="%d"/>`+"\n", x(t), plotBottom, plotBottom+4)
		fmt.Fprintf(out, `<text class="middle" x="%.1f" y="%d">%s</text>`+"\n", x(t), plotBottom+18, escaped(number(t/unit)+" "+name))
	}
	left := plotRight
	for i := len(p.curves) - 1; i >= 0; i-- {
		c := p.curves[i]
		points := make([]string, len(w.samples))
		for k, s := range w.samples {
			points[k] = fmt.Sprintf("%.1f,%.1f", x(s.At), y(c.at(s)))
		}
		fmt.Fprintf(out, `<polyline class="%s" points="%s"/>`+"\n", c.class, strings.Join(points, " "))
		if c.name == "" || len(p.curves) == 1 {
			continue
		}
		left -= 7*len(c.name) + 6
		fmt.Fprintf(out, `<text x="%d" y="20">%s</text>`+"\n", left, escaped(c.name))
		left -= 24
		fmt.Fprintf(out, `<polyline class="%s" points="%d,16 %d,16"/>`+"\n", c.class, left, left+18)
		left -= 8
	}
}

// scale returns a function that maps a value to its vertical position, and the values that are labeled on the axis.
func (p panel) scale(samples []soakSample) (y func(float64) float64, ticks []float64) {
	low, high := math.Inf(1), 0.0
	for _, s := range samples {
		for _, c := range p.curves {
			if v := c.at(s); v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 {
		low, high = 1, 1
	}
	if !p.log {
		step := niceStep(high / 4)
		top := math.Ceil(high/step) * step
		for v := 0.0; v <= top*1.001; v += step {
			ticks = append(ticks, v)
		}
		return func(v float64) float64 { return plotBottom - (plotBottom-plotTop)*v/top }, ticks
	}
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	last = max(last, first+1)
	for e := first; e <= last; e++ {
		ticks = append(ticks, math.Pow(10, e))
	}
	return func(v float64) float64 {
		e := first
		if v > 0 {
			e = max(math.Log10(v), first)
		}
		return plotBottom - (plotBottom-plotTop)*(e-first)/(last-first)
	}, ticks
}

// heldSpan returns when the snapshot was held, in seconds since the start.
func heldSpan(samples []soakSample) (from, to float64) {
	for _, s := range samples {
		if s.Held && from == 0 {
			from = s.At - s.Seconds
		}
		if s.Held {
			to = s.At
		}
	}
	return from, to
}

// niceStep rounds least up to 1, 2 or 5 times a power of ten.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= least {
			return factor * power
		}
	}
	return 10 * power
}

func number(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%g", math.Round(v*1000)/1000)
}

func escaped(text string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(text)) // a write to a buffer cannot fail
	return out.String()
}
