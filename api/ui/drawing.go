package ui

import (
	"fmt"
	"strconv"
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
		p.column(false, jobBox(s.Job, now))
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

func jobBox(j job.Job, now time.Time) box {
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
func shade(j job.Job) string {
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
	all.Foot = short(28, trimDot(all.Foot))
	list := []box{all}
	for _, j := range s.FanOut.Shown {
		list = append(list, jobBox(j.Job, now))
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

func trimDot(s string) string {
	if len(s) > len(" · ") {
		return s[len(" · "):]
	}
	return s
}
