// Command chart draws the results of the benchmark, with one panel per workload and one bar per peer. Each bar shows the median and the
// range from the worst to the best round.
//
//	go run ./chart results.jsonl > peers.svg
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// panel describes the panel for one workload.
type panel struct {
	workload, title, unit string
	less                  bool // whether smaller values are better
	value                 func(result) float64
}

// result contains the fields that the chart uses from a line of the driver's output.
type result struct {
	Peer     string             `json:"peer"`
	Workload string             `json:"workload"`
	Rate     float64            `json:"rate"`
	Chains   float64            `json:"chains_per_s"`
	Latency  map[string]float64 `json:"latency_ms"`
	Gap      map[string]float64 `json:"gap_ms"`
}

func rate(r result) float64   { return r.Rate }
func chains(r result) float64 { return r.Chains }

var panels = []panel{
	{"W1", "W1 drain", "jobs/s", false, rate},
	{"W2", "W2 bulk enqueue", "jobs/s", false, rate},
	{"W3", "W3 enqueue to start, idle", "ms p50", true, func(r result) float64 { return r.Latency["p50"] }},
	{"W4L", "W4L gap between steps, idle", "ms p50", true, func(r result) float64 { return r.Gap["p50"] }},
	{"W4C", "W4C chains of five at once", "chains/s", false, chains},
	{"W4T", "W4T as W4C, a row with each step", "chains/s", false, chains},
	{"W5", "W5 drain of a million", "jobs/s", false, rate},
	{"W6", "W6 four processes of five slots", "jobs/s", false, rate},
}

const (
	ours                 = "trapeze"
	wide, high, gap, top = 430, 24, 16, 40
	names, bar           = 120, 200
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./chart results.jsonl > peers.svg")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err == nil {
		err = draw(file, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// draw reads results from in and writes the chart to out as SVG.
func draw(in io.Reader, out io.Writer) error {
	found := map[string]map[string][]float64{} // by workload and peer
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		for _, p := range panels {
			if v := p.value(r); p.workload == r.Workload && v > 0 {
				if found[r.Workload] == nil {
					found[r.Workload] = map[string][]float64{}
				}
				found[r.Workload][r.Peer] = append(found[r.Workload][r.Peer], v)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	var body []byte
	heights := [2]int{gap, gap}
	for _, p := range panels {
		if len(found[p.workload]) == 0 {
			continue
		}
		column := 0
		if heights[1] < heights[0] {
			column = 1
		}
		body = p.draw(body, found[p.workload], gap+column*(wide+gap), heights[column])
		heights[column] += top + high*len(found[p.workload]) + gap
	}
	if body == nil {
		return fmt.Errorf("no results in %s", os.Args[1])
	}
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13">
<style>text{fill:#24292f}.bar{fill:#9aa4b2}.ours{fill:#0b7285}.span{stroke:#24292f;stroke-width:1.2}.dim{fill:#57606a}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#5c6773}.ours{fill:#3bc9db}.span{stroke:#e6edf3}.dim{fill:#9aa4b2}}</style>
%s</svg>
`, 3*gap+2*wide, max(heights[0], heights[1]), body)
	return err
}

// draw appends a panel whose top-left corner is at x, y. The best peer comes first.
func (p panel) draw(body []byte, peers map[string][]float64, x, y int) []byte {
	type row struct {
		peer             string
		low, median, top float64
	}
	var rows []row
	most := 0.0
	for peer, values := range peers {
		slices.Sort(values)
		r := row{peer, values[0], values[len(values)/2], values[len(values)-1]}
		rows, most = append(rows, r), max(most, r.top)
	}
	slices.SortFunc(rows, func(a, b row) int {
		if (a.median < b.median) == p.less {
			return -1
		}
		return 1
	})
	better := "more is better"
	if p.less {
		better = "less is better"
	}
	body = fmt.Appendf(body, `<text x="%d" y="%d" font-weight="600">%s</text><text class="dim" x="%d" y="%d" text-anchor="end">%s, %s</text>`+"\n",
		x, y+16, html.EscapeString(p.title), x+wide, y+16, p.unit, better)
	for i, r := range rows {
		at, class := y+top-8+i*high, "bar"
		if strings.HasPrefix(r.peer, ours) {
			class = "ours"
		}
		scale := func(v float64) int { return x + names + int(v/most*bar) }
		body = fmt.Appendf(body, `<text x="%d" y="%d">%s</text><rect class="%s" x="%d" y="%d" width="%d" height="14"/>`+
			`<line class="span" x1="%d" y1="%d" x2="%d" y2="%d"/><text x="%d" y="%d">%s</text>`+"\n",
			x, at+12, html.EscapeString(r.peer), class, x+names, at, max(scale(r.median)-x-names, 1),
			scale(r.low), at+7, scale(r.top), at+7, scale(max(r.median, r.top))+8, at+12, figure(r.median))
	}
	return body
}

// figure formats a value with about three digits.
func figure(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	text := strconv.Itoa(int(v + 0.5))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
