package ui

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestScheduleSparklineOccurrences(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	second, hour := job.Seconds(time.Second), job.Seconds(time.Hour)
	at := func(minute int, f job.Occurrence) job.Occurrence {
		f.FireAt = time.Date(2027, 1, 31, 3, minute, 0, 0, time.UTC)
		return f
	}
	s := sparkOf([]job.Occurrence{
		at(4, job.Occurrence{Outcome: job.OccurrenceMissed}), at(3, job.Occurrence{Outcome: job.OccurrenceFired, State: job.Running}),
		at(2, job.Occurrence{Outcome: job.OccurrenceFired, State: job.Failed, Took: &hour}), at(1, job.Occurrence{Outcome: job.OccurrenceFired, State: job.Succeeded, Took: &second}),
	})
	shapes := []string{}
	for _, m := range s.Marks {
		shapes = append(shapes, m.Shape)
	}
	is.Equal(shapes, []string{"succeeded", "failed", "running", "warning"}) // the newest occurrence is on the right
	is.True(s.Marks[1].Bar == sparkBar && s.Marks[0].Bar > 0)               // an hour has the longest bar, and a second is still visible
	is.True(s.Marks[0].Bar < s.Marks[1].Bar)                                // a second has a shorter bar than an hour
	is.Equal(s.Marks[2].Bar, 0)                                             // a running job has no bar yet
	is.Equal(s.Says, "The last 4 occurrences, newest at the right: 1 missed, 1 running, 1 failed, 1 succeeded")
	is.Equal(s.Marks[1].Says, "2027-01-31 03:02:00 UTC: failed, 1h 00m")
	is.True(s.Marks[3].X+sparkShape <= s.W) // everything fits in the drawing
	is.Equal(sparkOf(nil).Says, "")         // without occurrences, the drawing is empty
	is.Equal(sparkOf([]job.Occurrence{at(1, job.Occurrence{Outcome: job.OccurrenceFired, State: job.Succeeded})}).Says, "One occurrence: succeeded")
	many := make([]job.Occurrence, 30)
	is.Equal(len(sparkOf(many).Marks), sparkMost)
}

func TestScheduleStateLabels(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	now := time.Now()
	past, soon := now.Add(-time.Minute), now.Add(time.Minute)
	with := func(change func(*job.Schedule)) string {
		s := schedule{Now: now}
		s.Expression, s.NextAt = "@daily", &soon
		change(&s.Schedule)
		return s.State()
	}
	is.Equal(with(func(*job.Schedule) {}), "on")
	is.Equal(with(func(s *job.Schedule) { s.Paused = true }), "paused")
	is.Equal(with(func(s *job.Schedule) { s.Error = "no such lane" }), "error")
	is.Equal(with(func(s *job.Schedule) { s.NextAt = &past }), "late") // no running pod could fire it
	is.Equal(with(func(s *job.Schedule) { s.NextAt = nil }), "being planned")
	is.Equal(with(func(s *job.Schedule) { s.NextAt, s.Expression = nil, "@at 2020-01-31T03:00" }), "over")
	is.Equal(inZone("Europe/Zurich", time.Date(2027, 7, 1, 0, 30, 0, 0, time.UTC)), "Thu 1 Jul 2027, 02:30:00 CEST")
}
