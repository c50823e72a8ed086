package ui

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// gantt shows when a pipeline's jobs waited and ran, on a common time axis of length 1000.
type gantt struct {
	From, To time.Time
	Ticks    []string // the time since From at evenly spaced positions
	Rows     []ganttRow
}

// ganttRow is the row of one job.
type ganttRow struct {
	job.Job
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
		g.Rows = append(g.Rows, ganttRow{Job: s.Job})
		if s.FanOut != nil {
			for _, child := range s.FanOut.Shown {
				g.Rows = append(g.Rows, ganttRow{Job: child.Job, Child: true})
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
	whole := max(g.To.Sub(g.From), time.Microsecond)
	at := func(t time.Time) int64 { return min(max(int64(1000*float64(t.Sub(g.From))/float64(whole)), 0), 1000) }
	x := min(at(from), 996)
	return segment{x, max(at(to)-x, 4)}
}

// Shade returns the color of the bar.
func (r ganttRow) Shade() string { return shade(r.Job) }
