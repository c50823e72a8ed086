package view

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestFailureReadLimit(t *testing.T) {
	t.Parallel()
	is, s := is.New(t), plantest.Open(t, store.New)
	plantest.SeedEnded(t, s.Pool(), 2*tooManyFailures, 2)
	all, err := Failures(t.Context(), s, time.Time{}, "")
	is.NoErr(err)
	is.Equal([]any{all.Jobs, all.Complete}, []any{MostFailures, false})
	var reached time.Time
	is.NoErr(s.Pool().QueryRow(t.Context(), `select finished_at from trapeze.done where state = 'failed' order by finished_at desc offset $1 limit 1`, MostFailures-1).Scan(&reached))
	is.True(all.Since.Equal(reached)) // the list reports how far back it has read
	is.Equal(len(all.Groups), 3)      // one group for each kind, because all errors are the same

	day := time.Now().Add(-24 * time.Hour)
	recent, err := Failures(t.Context(), s, day, "")
	is.NoErr(err)
	is.True(recent.Complete)
	is.True(recent.Since.Equal(day))
	is.True(recent.Jobs > 0 && recent.Jobs < MostFailures)
}

// tooManyFailures is a number of failed jobs that is too large for one read.
const tooManyFailures = MostFailures + 1000

func TestFailuresOfOwner(t *testing.T) {
	t.Parallel()
	is, s := is.New(t), plantest.Open(t, store.New)
	plantest.SeedEnded(t, s.Pool(), 1200, 3) // ana submitted a quarter of the jobs, and a third of hers have failed
	own, err := Failures(t.Context(), s, time.Time{}, "ana")
	is.NoErr(err)
	is.Equal([]any{own.Jobs, own.Complete}, []any{100, true})
	for i, one := range own.Groups {
		_, members, _ := own.Of(one.ID)
		is.Equal(len(members), own.Groups[i].Jobs)
		for n := range len(members) - 1 {
			is.True(!members[n].FailedAt.Before(members[n+1].FailedAt)) // the latest failure first
		}
	}
	none, err := Failures(t.Context(), s, time.Time{}, "bob")
	is.NoErr(err)
	is.Equal([]any{none.Jobs, none.Complete}, []any{0, true})
}
