package checker

import (
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// crime is one way to break an invariant: events that lead up to the violation, and optionally a change to the records.
type crime struct {
	invariant, name string
	live            func(p *past)        // makes the events happen
	forge           func(r *history.Run) // changes the records; nil leaves them unchanged
}

// sleeper returns a job that is running on a pod.
func sleeper(p *past, pod string) *tale { return p.submit("demo.sleep", `{"ms":500}`).claim(pod) }

// last returns a pointer to the last element of a list.
func last[T any](list []T) *T { return &list[len(list)-1] }

// row returns the row of the first job that find accepts.
func row(r *history.Run, find func(job.JobRow) bool) *job.JobRow {
	return &r.Jobs[slices.IndexFunc(r.Jobs, find)]
}

func kind(k string) func(job.JobRow) bool { return func(j job.JobRow) bool { return j.Kind == k } }
func newest(r *history.Run) *job.JobRow   { return last(r.Jobs) }

// eventsOf returns a job's events.
func eventsOf(r *history.Run, id int64) (list []*job.Event) {
	for i := range r.Events {
		if r.Events[i].Job != nil && *r.Events[i].Job == id {
			list = append(list, &r.Events[i])
		}
	}
	return list
}

func TestEveryInvariantViolation(t *testing.T) {
	t.Parallel()
	crimes := slices.Concat(lostCrimes, fenceCrimes, ownerCrimes, chainCrimes, historyCrimes, commandCrimes, podCrimes, fleetCrimes, orderCrimes, keyCrimes, rateCrimes,
		scheduleCrimes, remoteCrimes)
	caught := map[string]bool{}
	for _, c := range crimes {
		caught[c.invariant] = true
		t.Run(c.invariant+" "+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p := uneventful(t)
			if c.live != nil {
				c.live(p)
			}
			r := p.done()
			if c.forge != nil {
				c.forge(r)
			}
			f := findingOf(t, Check(r), c.invariant)
			is.True(len(f.Violations) > 0) // the violation is detected
			is.True(f.Violations[0].What != "")
		})
	}
	for _, one := range invariants {
		if !caught[one.name] {
			t.Errorf("no test breaks %s", one.name)
		}
	}
}
