//go:build long

package runner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// If a deployment is late, a one-off schedule's time may have passed before the program declares it. The schedule then never fires.
func TestPastSingleOccurrenceDeclared(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	declares := func() (*runner.Runner, *podtest.Log) {
		log, told := debugging()
		r := newRunner(t, pool, runner.Options{Logger: log}, map[string]handler{"k": succeed})
		r.DeclareSchedule("once", "@at 2001-01-31T03:00", rawArgs("k"), runner.Zone("Europe/Zurich"))
		run(t, r)
		return r, told
	}
	r, told := declares()
	pgtest.Wait(t, "the schedule is planned", func() bool { return queryOne[bool](t, pool, `select planned from trapeze.schedules`) })
	is.True(strings.Contains(told.String(), "schedule was declared after its time")) // the program warns once
	s, err := r.Admin("").ScheduleByName(t.Context(), "once")
	is.NoErr(err)
	is.Equal(s.Error, "") // the schedule itself is valid
	is.Equal(s.Words, "once, on 2001-01-31 at 03:00:00, Europe/Zurich")
	is.Equal(len(s.NextFires), 0)
	is.Equal(len(s.LastFires), 0) // the schedule has never fired
	_, told = declares()          // the same declaration is repeated
	is.True(!strings.Contains(told.String(), "after its time"))
	by, err := r.Admin("ann").TriggerSchedule(t.Context(), "once", nil)
	is.NoErr(err)
	inState(t, r, *by.JobID, job.Succeeded) // an operator can still trigger the schedule
	_, err = r.Admin("ann").SetSchedule(t.Context(), "other", every("@at 2001-01-31T03:00"))
	is.True(errors.Is(err, job.ErrInvalidSchedule)) // an operator who sets a past date has probably made a mistake
}
