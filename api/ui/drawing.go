package ui

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// tree is a pipeline with its decoded planned steps.
type tree struct {
	job.Tree
	Planned []job.Step
}

// Earlier returns the number of earlier steps omitted from the drawing.
func (t tree) Earlier() int { return max(len(t.Jobs)-mostSteps, 0) }

// Latest returns the steps that are drawn.
func (t tree) Latest() []job.TreeJob { return t.Jobs[t.Earlier():] }

// drawing is an SVG drawing of a pipeline. It has one column for each step, and one for each fan-out's children.
type drawing struct {
	W, H  int
	Boxes []box
	Lines []line
}

// box represents a job, all children of a fan-out, or a planned step.
type box struct {
	X, Y, W, H int
	Link       string // relative to the page's root; may be empty
	State      string
	Title      string
	Sub, Foot  string
	Planned    bool
	Parts      []part // the segments of a fan-out's bar
}

// part is a segment of a fan-out's bar.
type part struct {
	State string
	X, W  int
}

// line connects two boxes.
type line struct {
	D       string
	Planned bool
}

// These are the dimensions of the drawing and its limits on steps. It shows the latest steps and the next planned steps.
const (
	boxW, boxH   = 176, 66
	fanH         = 82
	gapX, gapY   = 32, 12
	edge         = 8
	mostSteps    = 40
	mostPlanned  = 20
	titleLetters = 20
)

// pen builds a drawing from left to right.
type pen struct {
	drawing
	x    int
	ends []point // the points at which lines to the next column begin
}

type point struct{ x, y int }

// draw returns the drawing of a pipeline.
func draw(t tree, now time.Time) drawing {
	p := &pen{x: edge}
	steps := t.Jobs
	if n := t.Earlier(); n > 0 {
		p.column(false, box{H: boxH, Title: fmt.Sprintf("%s earlier steps", number(n)), Sub: "not shown", State: "succeeded",
			Link: "jobs?pipeline=" + strconv.FormatInt(t.ID, 10)})
		steps = steps[n:]
	}
	for _, s := range steps {
		p.column(false, jobBox(s.JobRow, now))
		if s.FanOut != nil {
			p.column(false, fanBoxes(s, now)...)
		}
	}
	planned := t.Planned
	more := len(planned) - mostPlanned
	if more > 0 {
		planned = planned[:mostPlanned]
	}
	for _, s := range planned {
		p.column(true, box{H: boxH, Planned: true, State: "planned", Title: short(titleLetters, s.Kind), Sub: short(25, orEmpty(s.Subject)), Foot: "planned"})
	}
	if more > 0 {
		p.column(true, box{H: boxH, Planned: true, State: "planned", Title: fmt.Sprintf("%s more steps", number(more)), Foot: "planned"})
	}
	p.W, p.H = p.x-gapX+edge, p.H+edge
	return p.drawing
}

// column draws one column of boxes, and connects each to the boxes of the previous column.
func (p *pen) column(planned bool, boxes ...box) {
	y := edge
	var ends []point
	for _, b := range boxes {
		b.X, b.Y, b.W = p.x, y, boxW
		p.Boxes = append(p.Boxes, b)
		middle := y + boxH/2
		for _, from := range p.ends {
			p.Lines = append(p.Lines, line{curve(from, point{p.x, middle}), planned})
		}
		ends = append(ends, point{p.x + boxW, middle})
		y += b.H + gapY
	}
	p.H, p.ends = max(p.H, y-gapY), ends
	p.x += boxW + gapX
}

// curve returns an SVG path between two points that is horizontal at both ends.
func curve(a, b point) string {
	if a.y == b.y {
		return fmt.Sprintf("M%d %dH%d", a.x, a.y, b.x)
	}
	middle := (a.x + b.x) / 2
	return fmt.Sprintf("M%d %dC%d %d %d %d %d %d", a.x, a.y, middle, a.y, middle, b.y, b.x, b.y)
}

func jobBox(j job.JobRow, now time.Time) box {
	sub := "#" + strconv.FormatInt(j.ID, 10)
	if j.Subject != "" {
		sub += " · " + plain(j.Subject)
	}
	foot := calls(j.State)
	if took := lasted(now, j.StartedAt, j.FinishedAt); took != "" {
		foot += " · " + took
	}
	return box{H: boxH, Link: "jobs/" + strconv.FormatInt(j.ID, 10), State: shade(j), Title: short(titleLetters, j.Kind), Sub: short(25, sub), Foot: foot}
}

// shade returns a job's state, or "warning" if it succeeded with a warning.
func shade(j job.JobRow) string {
	if j.State == job.Succeeded && j.Outcome != nil && *j.Outcome == job.Warning {
		return "warning"
	}
	return string(j.State)
}

// fanBoxes returns the boxes of a fan-out: one for all children, then one for each child that is running or has failed.
func fanBoxes(s job.TreeJob, now time.Time) []box {
	all := box{H: fanH, State: "branches", Title: number(s.FanOut.Branches) + " children", Link: "jobs/" + strconv.FormatInt(s.ID, 10) + "/children"}
	x, done := 0, 0
	for _, c := range counts(s.FanOut) {
		w := max(c.N*(boxW-24)/max(s.FanOut.Branches, 1), 3)
		w = min(w, boxW-24-x)
		all.Parts = append(all.Parts, part{string(c.State), x + 12, w})
		x += w
		if c.State.Terminal() {
			done += c.N
		}
		if c.State != job.Succeeded {
			all.Foot += fmt.Sprintf(" · %s %s", number(c.N), calls(c.State))
		}
	}
	all.Sub = fmt.Sprintf("%s of %s done", number(done), number(s.FanOut.Branches))
	all.Foot = short(28, strings.TrimPrefix(all.Foot, " · "))
	list := []box{all}
	for _, j := range s.FanOut.Shown {
		list = append(list, jobBox(j.JobRow, now))
	}
	return list
}

// stateCount is the number of jobs in a state.
type stateCount struct {
	State job.State
	N     int
}

// counts returns the number of a fan-out's children in each state, with final states first.
func counts(f *job.TreeFanOut) (list []stateCount) {
	for _, state := range []job.State{job.Succeeded, job.Failed, job.Cancelled, job.Running, job.Waiting, job.Pending, job.AwaitingApproval} {
		if n := f.States[state]; n > 0 {
			list = append(list, stateCount{state, n})
		}
	}
	return list
}

// gantt shows when a pipeline's jobs waited and ran, on a common time axis of length 1000.
type gantt struct {
	From, To time.Time
	Ticks    []string // the time since From at evenly spaced positions
	Rows     []ganttRow
}

// ganttRow is the row of one job.
type ganttRow struct {
	job.JobRow
	Child        bool
	Wait, Run    segment // a width of 0 means no bar
	Waited, Took string
}

// segment is a part of the time axis.
type segment struct{ X, W int64 }

// quarters is the number of intervals between the ticks on the axis.
const quarters = 4

// ganttOf returns the chart of the steps and children that the page shows. A fan-out's bar ends when its last child ends.
func ganttOf(t tree, now time.Time) (g gantt) {
	for _, s := range t.Latest() {
		g.Rows = append(g.Rows, ganttRow{JobRow: s.JobRow})
		if s.FanOut != nil {
			for _, child := range s.FanOut.Shown {
				g.Rows = append(g.Rows, ganttRow{JobRow: child.JobRow, Child: true})
			}
		}
	}
	for i, r := range g.Rows {
		if i == 0 || r.CreatedAt.Before(g.From) {
			g.From = r.CreatedAt
		}
		if end := r.endAt(now); end.After(g.To) {
			g.To = end
		}
	}
	for i := range g.Rows {
		r := &g.Rows[i]
		end := r.endAt(now)
		started := end
		if r.StartedAt != nil && r.State != job.Pending && r.State != job.AwaitingApproval { // a retried job is waiting again
			started = *r.StartedAt
			r.Run, r.Took = g.segment(started, end), length(max(end.Sub(started), 0))
		}
		r.Wait, r.Waited = g.segment(r.CreatedAt, started), length(max(started.Sub(r.CreatedAt), 0))
	}
	for i := range int64(quarters + 1) {
		g.Ticks = append(g.Ticks, length(g.To.Sub(g.From)*time.Duration(i)/quarters))
	}
	return g
}

// endAt returns the time at which a job's bar ends.
func (r ganttRow) endAt(now time.Time) time.Time {
	if r.FinishedAt != nil && r.State.Terminal() {
		return *r.FinishedAt
	}
	return now
}

// segment returns the part of the axis that a period covers.
func (g gantt) segment(from, to time.Time) segment {
	at := axis(g.From, g.To)
	x := min(at(from), 996)
	return segment{x, max(at(to)-x, 4)}
}

// Shade returns the color of the bar.
func (r ganttRow) Shade() string { return shade(r.JobRow) }

// spark is a drawing of a schedule's latest occurrences, with the newest on the right. A shape and a color show the outcome of each
// occurrence, and a bar shows the duration of its job.
type spark struct {
	W, H  int
	Marks []mark
	Says  string // a description for screen readers
}

// mark is one occurrence in a spark.
type mark struct {
	X         int // the left edge of its shape
	BarX      int
	BarY, Bar int    // the top of the bar, and its height; the height is 0 if there is no bar
	Shape     string // the name of a state, which selects the icon and color
	Says      string
}

// These are the dimensions of a spark.
const (
	sparkStep  = 12 // distance between occurrences
	sparkShape = 10 // size of a shape
	sparkBar   = 16 // height of the longest bar
	sparkMost  = 20 // maximum number of occurrences
)

// sparkOf returns a drawing of occurrences, which must be sorted newest first.
func sparkOf(occurrences []job.Occurrence) spark {
	occurrences = occurrences[:min(len(occurrences), sparkMost)]
	s := spark{W: len(occurrences) * sparkStep, H: sparkBar + 2 + sparkShape}
	longest, counts, order := time.Duration(0), map[string]int{}, []string{}
	for _, f := range occurrences {
		if f.Took != nil {
			longest = max(longest, f.Took.Duration())
		}
		name := becameOf(f)
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
		}
	}
	for i, f := range slices.Backward(occurrences) {
		m := mark{X: (len(occurrences) - 1 - i) * sparkStep, Shape: shapeOf(f), Says: f.FireAt.UTC().Format("2006-01-02 15:04:05 UTC") + ": " + becameOf(f)}
		m.BarX = m.X + (sparkShape-6)/2
		if f.Took != nil {
			m.Bar = height(f.Took.Duration(), longest)
			m.Says += ", " + tookOf(f.Took)
		}
		m.BarY = sparkBar - m.Bar
		s.Marks = append(s.Marks, m)
	}
	said := []string{}
	for _, name := range order {
		said = append(said, fmt.Sprintf("%d %s", counts[name], name))
	}
	if len(occurrences) == 0 {
		return s
	}
	s.Says = fmt.Sprintf("The last %d occurrences, newest at the right: %s", len(occurrences), strings.Join(said, ", "))
	if len(occurrences) == 1 {
		s.Says = "One occurrence: " + said[0][2:]
	}
	return s
}

// height returns the height of a job's bar. It grows with the logarithm of the duration, so that bars for a second and for an hour are both
// visible.
func height(took, longest time.Duration) int {
	if longest <= 0 {
		return 1
	}
	part := math.Log1p(took.Seconds()*1000) / math.Log1p(longest.Seconds()*1000)
	return min(max(int(math.Round(part*sparkBar)), 1), sparkBar)
}

// becameOf describes the outcome of an occurrence in words.
func becameOf(f job.Occurrence) string {
	switch f.Outcome {
	case job.OccurrenceFired:
		if f.State == "" {
			return "its job was removed by retention"
		}
		return calls(f.State)
	case job.OccurrenceDuplicate:
		return "no job: its unique key is held"
	case job.OccurrenceOverlap:
		return "skipped: the previous job is unfinished"
	case job.OccurrenceMissed:
		return "missed"
	case job.OccurrenceFailed:
		return "its job was refused"
	}
	return plain(string(f.Outcome))
}

// shapeOf returns the state whose shape and color represent an occurrence.
func shapeOf(f job.Occurrence) string {
	switch f.Outcome {
	case job.OccurrenceFired:
		if f.State == "" {
			return "planned"
		}
		return string(f.State)
	case job.OccurrenceMissed:
		return "warning"
	case job.OccurrenceFailed:
		return "failed"
	}
	return "cancelled"
}

// tookOf formats a duration, or returns an empty string if it is unknown.
func tookOf(d *job.Seconds) string {
	if d == nil {
		return ""
	}
	return length(max(d.Duration(), 0))
}

// late describes how late an occurrence was processed.
func late(f job.Occurrence) string {
	if f.Manual {
		return ""
	}
	return length(max(f.DecidedAt.Sub(f.FireAt), 0))
}
