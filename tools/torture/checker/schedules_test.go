package checker

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// schedule records the current state of a schedule, including its first unprocessed occurrence.
func (p *past) schedule(name, expression string, paused bool, undecided time.Time) time.Time {
	one := history.Schedule{N: int64(len(p.run.Schedules) + 1), At: p.step(), Schedule: name, Expression: expression, Paused: paused, Anchor: p.now}
	if !undecided.IsZero() {
		one.Undecided = &undecided
	}
	p.run.Schedules = append(p.run.Schedules, one)
	return p.now
}

// fire processes an occurrence now, after the given number of missed occurrences, and adds its job.
func (p *past) fire(name string, at time.Time, missed int) *tale {
	t := p.add(job.JobRow{Kind: "demo.noop", Args: json.RawMessage(`{}`), Lane: "default"})
	p.xid++
	t.event("job.enqueued", "", job.Pending, "system")
	p.run.Occurrences = append(p.run.Occurrences, history.Fire{Schedule: name, FireAt: at, DecidedAt: p.now, Outcome: "fired", Missed: missed, Job: &t.row.ID})
	podID := p.pods["pod1"].podID
	p.run.Events = append(p.run.Events, job.Event{Cursor: fmt.Sprintf("%d.0.1", p.xid), At: p.now, Actor: "system", PodID: &podID, Event: "schedule.fired", Level: "info",
		Message: &name, Fields: json.RawMessage(fmt.Sprintf(`{"schedule":%q,"fire_at":%q}`, name, at.Format(time.RFC3339Nano)))})
	return t.claim("pod1").succeed()
}

// fires records a schedule that fires three times at intervals of two seconds and is then paused.
func (p *past) fires(name string) {
	anchor := p.schedule(name, "@every 2s", false, time.Time{})
	for n := 1; n <= 3; n++ {
		at := anchor.Add(time.Duration(n) * 2 * time.Second)
		p.now = later(p.now, at)
		p.fire(name, at, 0)
	}
	p.schedule(name, "@every 2s", true, anchor.Add(8*time.Second))
}

// third returns the third occurrence of schedule s.
func third(r *history.Run) *history.Fire {
	return &r.Occurrences[slices.IndexFunc(r.Occurrences, func(f history.Fire) bool { return f.Schedule == "s" })+2]
}

func drop(r *history.Run, n int) {
	at := slices.IndexFunc(r.Occurrences, func(f history.Fire) bool { return f.Schedule == "s" }) + n
	r.Occurrences = slices.Delete(r.Occurrences, at, at+1)
}

func threeOccurrences(p *past) { p.fires("s") }

var scheduleCrimes = []crime{
	{"I19", "a fire is skipped", threeOccurrences, func(r *history.Run) { drop(r, 1) }},
	{"I19", "a fire is for a different time", threeOccurrences, func(r *history.Run) { third(r).FireAt = third(r).FireAt.Add(time.Second / 2) }},
	{"I19", "a fire is early", threeOccurrences, func(r *history.Run) { third(r).DecidedAt = third(r).FireAt.Add(-time.Second) }},
	{"I19", "a fire is very late", threeOccurrences, func(r *history.Run) { third(r).DecidedAt = third(r).FireAt.Add(20 * time.Second) }},
	{"I19", "a fire has two jobs", func(p *past) { p.fire("s", p.now, 0); p.fires("s") }, func(r *history.Run) { drop(r, 0) }},
	{"I19", "two fires have one job", threeOccurrences, func(r *history.Run) { r.Occurrences[len(r.Occurrences)-2].Job = third(r).Job }},
	{"I19", "a fire has no job", threeOccurrences, func(r *history.Run) { third(r).Job = nil }},
	{"I19", "a fire has a job that does not exist", threeOccurrences, func(r *history.Run) { id := int64(1 << 40); third(r).Job = &id }},
	{"I19", "a fire is called missed too soon", threeOccurrences, func(r *history.Run) { third(r).Missed = 1; drop(r, 1) }},
	{"I19", "a fire without an event", threeOccurrences, func(r *history.Run) { r.Events = slices.DeleteFunc(r.Events, ofCalendar) }},
	{"I19", "a paused schedule fires", func(p *past) { p.schedule("s", "@every 2s", true, time.Time{}); p.fire("s", p.step(), 0) }, nil},
	{"I19", "a schedule stops firing", func(p *past) {
		anchor := p.schedule("s", "@every 2s", false, time.Time{})
		p.pass(30 * time.Second)
		p.schedule("s", "@every 2s", true, anchor.Add(2*time.Second))
	}, nil},
	{"I19", "a schedule that no longer changes stops firing", func(p *past) {
		p.schedule("s", "*/3 * * * * *", false, time.Time{})
		p.pass(30 * time.Second)
	}, nil},
}

func ofCalendar(e job.Event) bool { return e.Event == "schedule.fired" }

func TestOccurrencesOfExpression(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	anchor := time.Date(2026, 1, 2, 3, 4, 58, 500_000_000, time.UTC)
	of := func(expression string) (text []string) {
		for _, at := range occurrencesOf(&history.Schedule{Expression: expression, Anchor: anchor}, anchor.Add(7*time.Second)) {
			text = append(text, at.UTC().Format("05.0"))
		}
		return text
	}
	is.Equal(of("@every 1500ms"), []string{"00.0", "01.5", "03.0", "04.5"})
	is.Equal(of("@every 3s"), []string{"01.5", "04.5"})
	is.Equal(of("*/3 * * * * *"), []string{"00.0", "03.0"})
	is.Equal(of("*/2 * * * * *"), []string{"00.0", "02.0", "04.0"})
}
