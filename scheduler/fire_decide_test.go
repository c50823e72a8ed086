package scheduler

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// Of ten missed occurrences, the latest three submit jobs, oldest first. The others become a single entry.
func TestMissedOccurrencesCatchUpOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	hour := func(n int) time.Time { return time.Date(2026, 11, 1, n, 0, 0, 0, time.UTC) }
	cal, err := Parse("0 * * * *", "UTC", hour(0))
	is.NoErr(err)
	list := missedOccurrences(cal, job.ScheduleSetting{Missed: job.MissedCatchUp, CatchUp: 3}, hour(1), hour(10).Add(time.Minute))
	is.Equal(len(list), 4)
	is.Equal(list[0].FireAt, hour(7))
	is.Equal(list[0].Outcome, job.OccurrenceMissed)
	is.Equal(list[0].Missed, 6) // the number of earlier occurrences
	for i, f := range list[1:] {
		is.Equal(f.FireAt, hour(8+i))
		is.Equal(f.Outcome, job.OccurrenceFired)
	}
}
