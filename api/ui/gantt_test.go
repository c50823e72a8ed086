package ui

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestPipelineTimeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	start := time.Date(2025, 1, 31, 8, 0, 0, 0, time.UTC)
	after := func(s int) *time.Time { at := start.Add(time.Duration(s) * time.Second); return &at }
	var p tree
	p.Jobs = []job.TreeJob{
		{JobRow: job.JobRow{ID: 1, State: job.Succeeded, CreatedAt: start, StartedAt: after(25), FinishedAt: after(50)}},
		{JobRow: job.JobRow{ID: 2, State: job.Waiting, CreatedAt: *after(50), StartedAt: after(50)}, FanOut: &job.TreeFanOut{Branches: 9, Shown: []job.TreeJob{
			{JobRow: job.JobRow{ID: 3, State: job.Pending, CreatedAt: *after(60), StartedAt: after(70), FinishedAt: after(75)}}, // a child that was retried
		}}},
	}
	g := ganttOf(p, *after(100))
	is.Equal(g.Ticks, []string{"0ms", "25s", "50s", "1m 15s", "1m 40s"})
	is.Equal(len(g.Rows), 3)
	is.Equal([]segment{g.Rows[0].Wait, g.Rows[0].Run}, []segment{{0, 250}, {250, 250}})
	is.Equal([]string{g.Rows[0].Waited, g.Rows[0].Took}, []string{"25s", "25s"})
	is.Equal(g.Rows[1].Run, segment{500, 500})
	is.Equal([]segment{g.Rows[2].Wait, g.Rows[2].Run}, []segment{{600, 400}, {}})
	is.True(g.Rows[2].Child)
	one := tree{}
	one.Jobs = []job.TreeJob{{JobRow: job.JobRow{State: job.Pending, CreatedAt: start}}}
	is.Equal(ganttOf(one, start).Rows[0].Wait, segment{0, 4}) // an axis of zero length
}
