package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// row is a finished job.
type row struct {
	ID, Pipeline   int64
	Parent         *int64
	Step           int
	Kind, Subject  string
	Submitter      string
	State          job.State
	Reason, Error  *string
	Fence          int64
	EventNo        int
	Attempt        int
	Crashes        int
	CrashesAllowed int
}

// event is one entry in a job's history.
type event struct {
	Job, Written int64
	No           int
	XID          string
	Fence        *int64
	PodID        *string
	From, To     job.State
	Event        string
	At           time.Time
}

// wrong is a problem found by one of the queries that check runs.
type wrong struct {
	Job  int64
	What string
}

// history contains the jobs and events that check has read. Tests use the counts to make sure that the fault had an effect.
type history struct {
	jobs   map[int64]row
	events map[int64][]event
	counts map[string]int // number of events by name
}

const (
	rowsSQL = `select id, pipeline_id, parent_id, step, kind, subject, submitter, state, reason, error, fence, event_no, attempt, crashes,
		coalesce((select max_crashes from trapeze.jobs j where j.id = v.id), $1) from trapeze.job v`
	eventsSQL = `select coalesce(e.job, b.job), written, coalesce(e.event_no, b.event_no), xid::text, coalesce(e.fence, b.fence),
			pod::text, from_state, to_state, event, at
		from trapeze.job_events e left join lateral unnest(e.jobs, e.event_nos, e.fences) b(job, event_no, fence) on true
		where e.job is not null or b.job is not null order by 1, 3, written`
	// Each exactly-once write must have left exactly one row, written by the claim that ended the job.
	effectsSQL = `select j.id, format('job %s (%s): %s effects, by fences %s, ended by fence %s', j.id, j.kind, count(e.job),
			array_agg(e.fence), max(d.fence))
		from trapeze.jobs j join trapeze.done d using (id) left join effects e on e.job = j.id
		where j.kind = any($1) and d.state = 'succeeded'
		group by j.id, j.kind having count(e.job) <> 1 or max(e.fence) <> max(d.fence)
		union all select e.job, format('job %s: an effect, and it did not succeed', e.job) from effects e
		where not exists (select from trapeze.done d where d.id = e.job and d.state = 'succeeded')`
	batchesSQL = `select j.id, format('job %s: batches %s', j.id, array_agg(format('%s by fence %s at %s', b.n, b.fence, to_char(b.at, 'SS.MS')) order by b.n, b.at))
		from trapeze.jobs j left join batches b on b.job = j.id where j.kind = 'batch'
		group by j.id, j.args::text
		having array_agg(b.n order by b.n) <> array(select generate_series(0, (j.args::text::json->>'Rows')::int - 1))
			or count(b.n) = 0`
	placesSQL = `select id, format('job %s is in %s places', id, count(*))
		from (select id from trapeze.live union all select id from trapeze.parked union all select id from trapeze.done) p
		group by id having count(*) > 1
		union all select id, format('job %s is nowhere', id) from trapeze.jobs j
		where not exists (select from trapeze.job v where v.id = j.id)
		union all select l.id, format('job %s runs under a pod that is closed', l.id)
		from trapeze.live l join trapeze.pods p on p.id = l.pod where p.closed_at is not null
		union all select job_id, format('%s/%s still has a current run: job %s', kind, subject, job_id)
		from trapeze.subjects where state = 'held'`
)

// check reads the whole database and reports every violation.
func (w *world) check() history {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	h := history{jobs: map[int64]row{}, events: map[int64][]event{}, counts: map[string]int{}}
	for _, r := range list(ctx, w, pgx.RowToStructByPos[row], rowsSQL, maxCrashes) {
		h.jobs[r.ID] = r
	}
	for _, e := range list(ctx, w, pgx.RowToStructByPos[event], eventsSQL) {
		h.events[e.Job] = append(h.events[e.Job], e)
		h.counts[e.Event]++
	}
	for sql, args := range map[string][]any{effectsSQL: {writers}, batchesSQL: nil, placesSQL: nil} {
		for _, found := range list(ctx, w, pgx.RowToStructByPos[wrong], sql, args...) {
			w.t.Errorf("%s\n%s", found.What, h.story(found.Job))
		}
	}
	w.checkJobs(h)
	for id, events := range h.events {
		w.checkEvents(h.jobs[id], events)
	}
	w.checkSubjects(h)
	w.t.Logf("checked %d jobs, %v", len(h.jobs), h.counts)
	return h
}

func list[T any](ctx context.Context, w *world, scan pgx.RowToFunc[T], sql string, args ...any) []T {
	w.t.Helper()
	result, err := w.pool.Query(ctx, sql, args...)
	if err == nil {
		var found []T
		if found, err = pgx.CollectRows(result, scan); err == nil {
			return found
		}
	}
	w.t.Fatalf("the check itself: %v", err)
	return nil
}

// checkJobs checks that every submitted job exists, has succeeded, and was followed by exactly the steps of its chain.
func (w *world) checkJobs(h history) {
	w.t.Helper()
	w.checkSubmissions(h, client, w.submitted, 0)
	for _, p := range w.pods {
		ids, doubts := p.submissions(w.t)
		w.checkSubmissions(h, p.name, ids, doubts)
	}
	children, steps := map[int64]int{}, map[int64]map[int]int{}
	for _, r := range h.jobs {
		if r.State != job.Succeeded {
			w.t.Errorf("%s ended %s", h.story(r.ID), r.State)
		}
		if r.Crashes > r.CrashesAllowed {
			w.t.Errorf("job %d: %d crashes, allowed %d", r.ID, r.Crashes, r.CrashesAllowed)
		}
		if limit := map[bool]int{true: 3, false: 1}[r.Kind == "flaky"]; r.Attempt > limit && lone[r.Kind] {
			w.t.Errorf("%s: attempt %d of %d", h.story(r.ID), r.Attempt, limit)
		}
		if r.Parent != nil {
			children[*r.Parent]++
		}
		if steps[r.Pipeline] == nil {
			steps[r.Pipeline] = map[int]int{}
		}
		steps[r.Pipeline][r.Step]++
	}
	for parent, n := range children {
		if n != 1 && lone[h.jobs[parent].Kind] {
			w.t.Errorf("job %d has %d children", parent, n)
		}
	}
	for pipeline, found := range steps {
		if h.jobs[pipeline].Kind == "split" && (len(found) != 2 || found[0] != 1 || found[1] != branches+1) {
			w.t.Errorf("pipeline %d (split): %v jobs of each step, want its first, %d branches and a join", pipeline, found, branches)
		}
		want := max(lengths[h.jobs[pipeline].Kind], 1)
		for step := range want {
			if found[step] != 1 && lone[h.jobs[pipeline].Kind] {
				w.t.Errorf("pipeline %d (%s): step %d is there %d times", pipeline, h.jobs[pipeline].Kind, step, found[step])
			}
		}
		if len(found) != want && lone[h.jobs[pipeline].Kind] {
			w.t.Errorf("pipeline %d (%s): %d steps, want %d", pipeline, h.jobs[pipeline].Kind, len(found), want)
		}
	}
}

// checkSubmissions checks that every job whose submission was confirmed exists, and that the number of other jobs does not exceed the
// number of submissions whose outcome is unknown.
func (w *world) checkSubmissions(h history, submitter string, ids []int64, doubts int) {
	w.t.Helper()
	for _, id := range ids {
		if _, ok := h.jobs[id]; !ok {
			w.t.Errorf("job %d, submitted by %s, is lost", id, submitter)
		}
	}
	found := 0
	for _, r := range h.jobs {
		if r.Step == 0 && r.Submitter == submitter {
			found++
		}
	}
	if found < len(ids) || found > len(ids)+doubts {
		w.t.Errorf("%s submitted %d pipelines, and %d more with an unknown outcome, but there are %d", submitter, len(ids), doubts, found)
	}
}

// lone lists the kinds defined in this package, whose pipelines and attempts are known. The example's kinds are checked through its totals
// instead.
var lone = map[string]bool{"link": true, "plain": true, "batch": true, "turn": true, "flaky": true, "nap": true}

// checkEvents checks one job's history. Event numbers must have no gaps, transitions must be valid, fences must increase with every claim,
// and the job must end exactly once.
func (w *world) checkEvents(r row, events []event) {
	w.t.Helper()
	var (
		state job.State
		fence int64
		ends  int
	)
	wrong := func(e event, format string, args ...any) {
		w.t.Errorf("job %d (%s), event %d (%s): %s", e.Job, r.Kind, e.No, e.Event, fmt.Sprintf(format, args...))
	}
	for i, e := range events {
		if e.No != i+1 {
			wrong(e, "is the %dth", i+1)
		}
		if e.From != state {
			wrong(e, "leaves %q, and the job was %q", e.From, state)
		}
		note := e.From == e.To // the event does not change the state
		if !note && !job.CanMove(e.From, e.To) {
			wrong(e, "no move from %q to %q", e.From, e.To)
		}
		switch {
		case e.To == job.Running && !note:
			fence++
			if e.Fence == nil || *e.Fence != fence {
				wrong(e, "claimed with fence %v, want %d", e.Fence, fence)
			}
		case e.From == job.Running && e.Event != "job.stale_result":
			if e.Fence == nil || *e.Fence != fence {
				wrong(e, "written with fence %v, the latest is %d", e.Fence, fence)
			}
		}
		if e.To.Terminal() && !note {
			ends++
		}
		state = e.To
	}
	if ends != 1 {
		w.t.Errorf("job %d (%s) has ended %d times", r.ID, r.Kind, ends)
	}
	if last := events[len(events)-1]; r.State != state || r.EventNo != last.No || r.Fence != fence {
		w.t.Errorf("job %d is %s after %d events, fence %d; its history says %s, %d, %d", r.ID, r.State, r.EventNo, r.Fence,
			state, last.No, fence)
	}
}

// story formats a job's history as text, with one line per event.
func (h history) story(id int64) string {
	r := h.jobs[id]
	text := fmt.Sprintf("job %d (%s, step %d, subject %q, attempt %d, crashes %d", id, r.Kind, r.Step, r.Subject, r.Attempt, r.Crashes)
	if r.Reason != nil {
		text += ", " + *r.Reason
	}
	if r.Error != nil {
		text += ", " + *r.Error
	}
	text += ")"
	for _, e := range h.events[id] {
		text += fmt.Sprintf("\n    %s %2d %s", e.At.Format("05.000"), e.No, e.Event)
		if e.Fence != nil && e.PodID != nil {
			text += fmt.Sprintf(" fence %d pod %.8s", *e.Fence, *e.PodID)
		}
	}
	return text + "\n"
}
