package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A job with a subject is in live only while it holds the subject's guard: the row of current_runs with the state running. A job whose
// subject is taken is parked with the reason subject. Three statements insert guards: a submission or next step ([placeParts]), a promotion,
// and an admission. Each of them makes only those jobs pending whose guard it has inserted.
//
// The end of a handler gives the guard to the first job that is parked for the subject ([endGuards]). Any other transaction that ends a job or parks it frees
// the guard. A process that has freed a guard, or has locked or written a row of parked with the reason subject,
// then calls [Store.AdmitNext], with a new snapshot: otherwise, a submission and an end at the same moment would leave the job to each other.
// If a process fails in between, the polls find the job: [Store.AdmitMissed] examines a thousand subjects per poll.

// takeGuards inserts the guards of the subjects in the given CTE, and deletes the rows of their ended runs. Guards are inserted in the order of
// their keys, so that two statements cannot wait for each other. Of the jobs with the same kind and subject, the most urgent one gets the
// guard. Plan: current_runs_of_subject; one insert per subject.
func takeGuards(from string) string {
	return `guarded as (
	insert into trapeze.current_runs (kind, subject, job_id, state, previous_job)
	select w.kind, w.subject, w.id, 'running',
		(select c.job_id from trapeze.current_runs c where c.kind = w.kind and c.subject = w.subject and c.state = 'ended' limit 1)
	from ` + from + ` w where w.free and w.subject <> ''
	order by w.kind, w.subject, (-w.priority), w.run_after, w.id
	on conflict (kind, subject) where state = 'running' do nothing
	returning kind, subject, job_id
), superseded as (
	delete from trapeze.current_runs c using guarded g
	where c.kind = g.kind and c.subject = g.subject and c.state = 'ended'
)`
}

// guardFree is the condition that no job may run for the subject of row w. The offset 0 makes it a probe of current_runs_one_running;
// without it, the planner would read all guards into a hash table.
const guardFree = `not exists (select from trapeze.current_runs c
		where c.kind = w.kind and c.subject = w.subject and c.state = 'running' offset 0)`

// firstWaiting evaluates an expression for the first job p that waits for the subject of row w. It is null if there is none. Without the order, the
// planner may search parked_of_lane, across all lanes. Plan: the first row of parked_for_subject.
func firstWaiting(expression string) string {
	return `(select ` + expression + ` from trapeze.parked p where p.why = 'subject' and p.kind = w.kind and p.subject = w.subject
			order by p.kind, p.subject, (-p.priority), p.run_after, p.id limit 1)`
}

// openLane is the condition that the lane of row p is open.
const openLane = `coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = p.lane), false)`

// openWaiting is true if a job in an open lane waits for the subject of row w, and null otherwise; also adds a condition. Plan: parked_for_subject up to
// the first such row; lanes_pkey.
func openWaiting(also string) string {
	return `(select true from trapeze.parked p where p.why = 'subject' and p.kind = w.kind and p.subject = w.subject` + also + ` and ` + openLane + `
			order by p.kind, p.subject, (-p.priority), p.run_after, p.id limit 1)`
}

// firstParked is the id of the first job that is parked for the subject of row w; also adds a condition. Without the first two columns of the order, the
// planner may search parked_of_lane. Plan: parked_for_subject up to the first such row.
func firstParked(also string) string {
	return `(select p.id from trapeze.parked p where p.why = 'subject' and p.kind = w.kind and p.subject = w.subject` + also + `
			order by p.kind, p.subject, (-p.priority), p.run_after, p.id limit 1)`
}

// duePrecedes is the condition that a due job of the subject of row w, which has not been promoted yet, precedes a position. It must be promoted first.
// Plan: parked_due_of_subject up to the first due row.
func duePrecedes(position string) string {
	return `coalesce((select true from trapeze.parked d where d.why in ('scheduled', 'retry', 'snooze') and d.subject <> '' and d.kind = w.kind and d.subject = w.subject
			and d.run_after <= now() and ` + position + ` order by d.kind, d.subject, (-d.priority), d.run_after, d.id limit 1), false)`
}

// lockFirst locks the first job that is parked for the subject of row w: those in open lanes come first. It selects nothing if another transaction has
// locked that job. Plan: as for firstParked; parked_pkey.
var lockFirst = `(select p.id, p.priority, p.run_after from trapeze.parked p
		where p.id = coalesce(` + firstParked(" and "+openLane) + `, ` + firstParked("") + `)
			and not ` + duePrecedes("((-d.priority), d.run_after, d.id) < ((-p.priority), p.run_after, p.id)") + ` for update skip locked) h`

const parkedColumns = `id, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind, subject`

// admitSQL makes the first parked job of each free subject pending: jobs in open lanes come first, then the more urgent ones. It does not take
// a later job if the first one is locked: the job would have to yield at once, and the process that has locked the first job admits it. It
// returns the subjects whose first job it has locked, and the lane of the job that was admitted. Without a lane, another transaction took the guard first,
// and the subject must be asked for again, because a concurrent end may have found the locked row. Plan: per subject, one probe of
// current_runs_one_running and parked_pkey, and an Index Scan on parked_for_subject up to the first row.
var admitSQL = newStatement(`
with heirs as materialized (
	select w.kind, w.subject, h.id, h.priority, h.run_after, true as free
	from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral `, lockFirst, `
	where `, guardFree, `
), `, takeGuards("heirs"), `, moved as (
	delete from trapeze.parked p using guarded g where p.id = g.job_id returning p.*
), admitted as (
	insert into trapeze.live (ready_at, state, `, parkedColumns, `)
	select run_after, 'pending', `, parkedColumns, ` from moved
)
select kind, subject, kind, lane, priority, run_after from moved
union all
select kind, subject, kind, '', priority, run_after from heirs where id not in (select job_id from guarded)`)

// yieldSQL parks the pending jobs that hold the guard of a subject although another job should run first: one that is more urgent, or
// whose lane is open while the pending job's lane is not. The pending job is not running, so the run before it counts as the latest one
// again. A recovered job, which precedes its lane's backlog, keeps its age. Plan: per subject, one probe of current_runs_one_running and of live_pkey,
// and an Index Scan on parked_for_subject up to the first row.
var yieldSQL = newStatement(`
with outranked as materialized (
	select l.id from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral (
		select c.job_id from trapeze.current_runs c where c.kind = w.kind and c.subject = w.subject and c.state = 'running' limit 1
	) c
	cross join lateral (
		select l.id, l.priority, coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = l.lane), false) as opens
		from trapeze.live l where l.id = c.job_id and l.state = 'pending' limit 1
	) l
	where case when l.opens then `, openWaiting(" and (-p.priority) < (-l.priority)"), `
		else `, openWaiting(""), ` end
), held as materialized (
	select l.id from outranked o join trapeze.live l on l.id = any(array[o.id]) where l.state = 'pending' order by o.id for update of l skip locked
), gone as (
	delete from trapeze.live l using held h where l.id = any(array[h.id]) returning l.*
), parked as (
	insert into trapeze.parked (why, run_after, `, parkedColumns, `)
	select 'subject', case when ready_at > 'epoch' then ready_at else claimed_at end, `, parkedColumns, ` from gone
), `, ReleaseGuards, `
select id from gone`)

// ReleaseGuards gives back the guards of the pending jobs in the gone CTE. The run before them is the latest one again, unless that job has
// been deleted or erased in the meantime. Plan: current_runs_of_subject, jobs_pkey.
const ReleaseGuards = `released as (
	update trapeze.current_runs c set state = 'ended', job_id = c.previous_job, previous_job = null from gone g where ` + pendingGuard + `
		and ` + previousExists + `
), deleted_guards as (
	delete from trapeze.current_runs c using gone g where ` + pendingGuard + ` and not ` + previousExists + `
)`

const (
	pendingGuard = `g.state = 'pending' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'running'`
	previousExists = `exists (select from trapeze.jobs j where j.id = c.previous_job and j.subject = c.subject offset 0)`
)

// DueJobs selects the due jobs that have not been claimed: the pending ones, and those that wait for their subject.
const DueJobs = `(
	select l.id, l.lane, l.kind, l.subject, l.priority, l.ready_at, false as blocked from trapeze.live l where l.state = 'pending'
	union all
	select p.id, p.lane, p.kind, p.subject, p.priority, p.run_after, true from trapeze.parked p where p.why = 'subject'
)`

// Key is the kind and subject of a job.
type Key struct{ Kind, Subject string }

// Admitted is the result of an admission.
type Admitted struct {
	Jobs  []AdmittedJob
	Again []Key // subjects whose guard another transaction took first; admit them again
}

// AdmittedJob is a job that has become pending.
type AdmittedJob struct {
	Kind     string
	Lane     string
	Priority int
	ReadyAt  time.Time
}

// Admit makes the first job of each subject pending, if the subject is free and no transaction has locked that job.
func (s *Store) Admit(ctx context.Context, keys []Key) (a Admitted, err error) {
	type row struct {
		Key
		AdmittedJob
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[row], admitSQL, keyArgs(keys))
	if err != nil {
		return a, fmt.Errorf("admit the jobs of %d subjects: %w", len(keys), err)
	}
	for _, r := range found {
		if r.Lane == "" {
			a.Again = append(a.Again, r.Key)
		} else {
			a.Jobs = append(a.Jobs, r.AdmittedJob)
		}
	}
	return a, nil
}

// Yield takes the guard from each subject's pending job if another of its jobs should run first, and returns how many it has taken.
func (s *Store) Yield(ctx context.Context, keys []Key) (int, error) {
	if len(keys) == 0 {
		return 0, nil
	}
	found, err := run(ctx, s, pgx.RowTo[int64], yieldSQL, keyArgs(keys))
	if err != nil {
		return 0, fmt.Errorf("choose between the jobs of %d subjects: %w", len(keys), err)
	}
	return len(found), nil
}

// AdmitNext calls [Store.Admit] for the subjects in keys until each is busy or has no more jobs. parked are those of which a job was parked, moved,
// handed back, or given another priority; a pending job of these yields to a job that should run before it. Yield comes after Admit: a
// concurrent admission that does not see the parked job can take the guard before. AdmitNext returns the admitted jobs even after an error.
// It is safe to call it for any subject at any time.
func (s *Store) AdmitNext(ctx context.Context, keys, parked []Key) (jobs []AdmittedJob, err error) {
	for try := 0; len(keys) > 0 && try < 20; try++ { // with more, transactions compete for the same subjects without end: a poll decides
		a, err := s.Admit(ctx, keys)
		if err != nil {
			return jobs, err
		}
		jobs = append(jobs, a.Jobs...)
		if keys = a.Again; len(keys) > 0 {
			parked = slices.Concat(parked, keys)
		} else if n, err := s.Yield(ctx, parked); err != nil {
			return jobs, err
		} else if n > 0 {
			keys = parked
		}
	}
	return jobs, nil
}

// AdmitParked is [Store.AdmitNext] for subjects of which a job was parked, moved, handed back, or given another priority.
func (s *Store) AdmitParked(ctx context.Context, keys []Key) ([]AdmittedJob, error) {
	return s.AdmitNext(ctx, keys, keys)
}

func keyArgs(keys []Key) args {
	kinds, subjects := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		kinds[i], subjects[i] = k.Kind, k.Subject
	}
	return args{{"kinds", kinds}, {"subjects", subjects}}
}

// parkedSubjectsSQL returns the next page of subjects that have a parked job, in the order of their keys, and moves the position that all
// pods share. After the last page it starts again. If another pod is reading a page, it returns nothing. Plan: parked_for_subject, one probe per
// subject; admission is one row.
var parkedSubjectsSQL = newStatement(`
with recursive here as materialized (
	select kind, subject from trapeze.admission for update skip locked
), page as (
	(select p.kind, p.subject, 1 as no from here h cross join lateral (select p.kind, p.subject from trapeze.parked p
		where p.why = 'subject' and (p.kind, p.subject) > (h.kind, h.subject) order by p.kind, p.subject limit 1) p)
	union all
	select n.kind, n.subject, l.no + 1 from page l cross join lateral (select p.kind, p.subject from trapeze.parked p
		where p.why = 'subject' and (p.kind, p.subject) > (l.kind, l.subject) order by p.kind, p.subject limit 1) n
	where l.no < @limit::int
), moved as (
	update trapeze.admission a set kind = coalesce(p.kind, ''), subject = coalesce(p.subject, '')
	from here h left join (select kind, subject from page where no = @limit::int) p on true
	where (a.kind, a.subject) is distinct from (coalesce(p.kind, ''), coalesce(p.subject, ''))
)
select kind, subject from page`)

// missedPage is the number of subjects that one poll of a pod examines.
const missedPage = 1000

// AdmitMissed admits the jobs whose subjects are free although nobody has admitted them, and lets pending jobs yield to those that should
// run first. One call examines up to a thousand subjects, and the next call of any pod continues with those that follow.
func (s *Store) AdmitMissed(ctx context.Context) ([]AdmittedJob, error) {
	page, err := run(ctx, s, pgx.RowToStructByPos[Key], parkedSubjectsSQL, args{{"limit", missedPage}})
	if err != nil {
		return nil, fmt.Errorf("find the subjects with parked jobs: %w", err)
	}
	if len(page) == 0 {
		return nil, nil
	}
	return s.AdmitParked(ctx, page)
}
