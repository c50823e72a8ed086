package store_test

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// checkHistory checks invariants that the database must satisfy at any time. The events of each job are numbered from 1 without gaps. Each
// event starts in the state in which the previous one ended, and makes a legal transition. Fences count the job's claims and never
// decrease. An event that ends a run carries its claim's fence. The job view shows the last state. A job with a subject is in live if and only
// if it holds the subject's guard.
func (w *world) checkHistory() {
	w.t.Helper()
	ctx := context.Background()
	type moment struct {
		Job      int64
		No       int
		From, To job.State
		Fence    *int64
		Event    string
	}
	result, err := w.pool.Query(ctx, w.In(`select job, event_no, from_state, to_state, fence, event from trapeze.job_event
		where job is not null order by job, event_no`))
	if err != nil {
		w.t.Errorf("read the history: %v", err)
		return
	}
	events, err := pgx.CollectRows(result, pgx.RowToStructByPos[moment])
	if err != nil {
		w.t.Errorf("read the history: %v", err)
		return
	}
	type standing struct {
		state job.State
		no    int
		fence int64
	}
	at := map[int64]standing{}
	for _, e := range events {
		was := at[e.Job]
		note := e.From == e.To && e.No > 1
		switch {
		case e.No != was.no+1:
			w.t.Errorf("job %d: event %d %s follows event %d", e.Job, e.No, e.Event, was.no)
		case e.From != was.state:
			w.t.Errorf("job %d: event %d %s continues from %q, but the previous event ended in %q", e.Job, e.No, e.Event, e.From, was.state)
		case !note && !job.CanMove(e.From, e.To):
			w.t.Errorf("job %d: event %d %s moves from %q to %q", e.Job, e.No, e.Event, e.From, e.To)
		case !note && e.To == job.Running && (e.Fence == nil || *e.Fence%store.FencesPerEpoch != was.fence%store.FencesPerEpoch+1 || *e.Fence <= was.fence):
			w.t.Errorf("job %d: event %d %s claims with fence %v after fence %d", e.Job, e.No, e.Event, deref(e.Fence), was.fence)
		case !note && e.From == job.Running && (e.Fence == nil || *e.Fence != was.fence):
			w.t.Errorf("job %d: event %d %s leaves running with fence %v, but was claimed with %d", e.Job, e.No, e.Event, deref(e.Fence), was.fence)
		}
		fence := was.fence
		if !note && e.To == job.Running && e.Fence != nil {
			fence = *e.Fence
		}
		at[e.Job] = standing{e.To, e.No, fence}
	}

	type row struct {
		ID    int64
		State job.State
		Fence int64
		No    int
	}
	result, err = w.pool.Query(ctx, w.In(`select id, state, fence, event_no from trapeze.job`))
	if err != nil {
		w.t.Errorf("read the jobs: %v", err)
		return
	}
	jobs, err := pgx.CollectRows(result, pgx.RowToStructByPos[row])
	if err != nil {
		w.t.Errorf("read the jobs: %v", err)
		return
	}
	seen := map[int64]bool{}
	for _, j := range jobs {
		if seen[j.ID] {
			w.t.Errorf("job %d is in two places", j.ID)
		}
		seen[j.ID] = true
		if s, ok := at[j.ID]; ok && s != (standing{j.State, j.No, j.Fence}) {
			w.t.Errorf("job %d is %s with event %d and fence %d, but its history ends in %s with event %d and fence %d",
				j.ID, j.State, j.No, j.Fence, s.state, s.no, s.fence)
		}
	}
	w.checkReading(seen)
	var broken []string
	err = w.pool.QueryRow(ctx, w.In(`select array_agg(format('job %s breaks the rule: %s', b.id, b.rule)) from (`+brokenRulesSQL+`) b`)).Scan(&broken)
	if err != nil || len(broken) > 0 {
		w.t.Errorf("%v %v", broken, err)
	}
	for what, sql := range map[string]string{
		"jobs without a place": `select count(*) from trapeze.jobs j where not exists (select from trapeze.job v where v.id = j.id)`,
		"unique keys of jobs that have ended": `select count(*) from trapeze.unique_keys k
			where exists (select from trapeze.done d where d.id = k.job_id)`,
	} {
		var n int
		if err := w.pool.QueryRow(ctx, w.In(sql)).Scan(&n); err != nil || n != 0 {
			w.t.Errorf("%d %s (%v)", n, what, err)
		}
	}
}

func deref(fence *int64) any {
	if fence == nil {
		return "none"
	}
	return *fence
}

// checkReading checks, for the first few jobs, that all of a job's events can be found through the references in the job's rows.
func (w *world) checkReading(jobs map[int64]bool) {
	w.t.Helper()
	ctx := context.Background()
	ids := slices.Sorted(maps.Keys(jobs))
	for _, id := range ids[:min(20, len(ids))] {
		result, err := w.pool.Query(ctx, w.In(`select event_no, event from trapeze.job_event where job = $1 order by event_no`), id)
		if err != nil {
			w.t.Errorf("read the history of job %d: %v", id, err)
			return
		}
		type entry struct {
			No    int
			Event string
		}
		all, err := pgx.CollectRows(result, pgx.RowToStructByPos[entry])
		if err != nil {
			w.t.Errorf("read the history of job %d: %v", id, err)
			return
		}
		read, err := view.JobEvents(ctx, w.Store, id, 0, len(all)+1)
		if err != nil {
			w.t.Errorf("%v", err)
			return
		}
		got := make([]entry, len(read))
		for i, e := range read {
			got[i] = entry{*e.EventNo, e.Event}
		}
		if !slices.Equal(got, all) {
			w.t.Errorf("job %d: %v was read of its history %v", id, got, all)
		}
	}
}
