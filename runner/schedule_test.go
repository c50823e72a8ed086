package runner_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// every returns a change that creates a schedule for kind k.
func every(expression string) job.ScheduleChange {
	kind := "k"
	return job.ScheduleChange{Expression: &expression, Kind: &kind}
}

// ofOutcome counts the occurrences with the given outcome.
func ofOutcome(list []job.Occurrence, want job.OccurrenceOutcome) (n int) {
	for _, f := range list {
		if f.Outcome == want {
			n++
		}
	}
	return n
}

func occurrences(t *testing.T, r *runner.Runner, name string) []job.Occurrence {
	t.Helper()
	list, err := r.Admin("").ScheduleOccurrences(t.Context(), name, time.Time{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestOccurrenceRunsOnTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": succeed})
	change := every("@every 1s")
	args := json.RawMessage(`{ "n": 1 }`)
	change.Args = &args
	done, err := r.Admin("ann").SetSchedule(t.Context(), "often", change)
	is.NoErr(err)
	is.True(done.Created)            // the schedule did not exist before
	is.Equal(len(done.NextFires), 5) // its next occurrences are known immediately
	is.Equal(done.After.Zone, "UTC") // omitted fields have their defaults
	is.Equal(string(done.After.Args), `{"n":1}`)
	pgtest.Wait(t, "two fires", func() bool { return ofOutcome(occurrences(t, r, "often"), job.OccurrenceFired) >= 2 })
	list := occurrences(t, r, "often")
	for i, f := range list {
		is.Equal(f.FireAt.Sub(done.NextFires[0]), time.Duration(len(list)-1-i)*time.Second) // at the announced times, without gaps
		is.True(f.DecidedAt.Sub(f.FireAt) >= 0)                                             // never early
	}
	j := inState(t, r, *list[len(list)-1].JobID, job.Succeeded)
	is.Equal(j.Priority, job.DefaultPriority)
	is.Equal(j.Submitter, "") // a scheduled job has no submitter
	is.Equal(string(j.Args), `{"n":1}`)
	p, err := r.Admin("").Pipeline(t.Context(), j.ID)
	is.NoErr(err)
	is.Equal(p.Name, "often") // the pipeline is named after the schedule
}

func TestInvalidScheduleSettings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{MinScheduleInterval: time.Minute}, map[string]handler{"k": succeed})
	for _, expression := range []string{"", "no", "* * * * * *", "@every 30s", "0 0 30 2 *"} {
		_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every(expression))
		is.True(errors.Is(err, job.ErrInvalidSchedule)) // the expression is invalid or fires too often, or it never fires
	}
	_, err := r.Admin("ann").SetSchedule(t.Context(), "not a name", every("@daily"))
	is.True(errors.Is(err, job.ErrInvalidSchedule))
	list, err := r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(len(list), 0) // no schedule was stored
}
