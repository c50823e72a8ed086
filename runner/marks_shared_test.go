package runner

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// What stands before a mark is not found by claims, which begin there; a look at everything must follow when the marks'
// time is over, and not only with the next poll.
func TestWhatAMarkHidesIsFoundWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil }})
	const look = 20 * time.Millisecond
	future := map[string]time.Time{job.DefaultLane: time.Now().Add(time.Hour)}
	r.marks.Apply(future, nil, look, r.opts.PollEvery, r.wake)
	began := time.Now()
	ids, err := r.EnqueueMany(t.Context(), []job.Args{Raw{Name: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, 8*time.Second, "the job has ended", func() bool {
		j, err := r.Get(t.Context(), ids[0])
		return err == nil && j.State == job.Succeeded
	})
	if waited := time.Since(began); waited > r.opts.PollEvery/2 {
		t.Errorf("it waited %s: for the poll", waited)
	}
}

func TestRemoteWorkersOfTheSameKindsShareTheirMarksForAsLongAsThePodPolls(t *testing.T) {
	t.Parallel()
	host := &Runner{opts: Options{PollEvery: time.Minute}}
	guest := func(id string, kinds ...string) *Guest {
		g := &Guest{r: &Runner{mineAll: kinds, marks: host.guests.marksFor(kinds), opts: Options{PollEvery: guestPollEvery}}, host: host, opts: GuestOptions{ID: id}}
		g.r.guest = g
		host.guests.add(g)
		return g
	}
	one, same, other := guest("1", "a", "b"), guest("2", "a", "b"), guest("3", "a")
	if one.r.marks != same.r.marks || one.r.marks == other.r.marks {
		t.Error("marks are not shared by those of the same kinds, and by those alone")
	}
	if most, _ := one.r.marksCount(); most != time.Minute {
		t.Errorf("they count for %s at most", most)
	}
}
