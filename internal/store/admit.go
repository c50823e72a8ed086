package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A job with a subject is in live only while it holds the subject's guard: the row of subjects with the state held. A job whose
// subject is taken is parked with the reason subject. An ordered job keeps the guard while it is parked until its retry. Three statements insert guards: a submission or next step ([placeParts]), a promotion,
// and an admission. Each of them makes only those jobs pending whose guard it has inserted.
//
// The end of a handler gives the guard to the first job that is parked for the subject ([endGuards]). Any other transaction that ends a job or parks it frees
// the guard. A process that has freed a guard, has made a running job pending again, or has locked or written a row of parked with the reason subject,
// then calls [Store.AdmitNext], with a new snapshot: otherwise, a submission and an end at the same moment would leave the job to each other.
// If a process fails in between, the polls find the job: [Store.AdmitMissed] examines a thousand subjects per poll.

// takeGuards inserts the guards of the subjects in the given CTE, and deletes the rows of their ended runs. Guards are inserted in the order of
// their keys, so that two statements cannot wait for each other. Of the jobs with the same kind and subject, the most urgent one gets the
// guard. Plan: subjects_by_subject; one insert per subject.
func takeGuards(from string) string {
	return `guarded as (
	insert into trapeze.subjects (kind, subject, job_id, state, previous_job)
	select w.kind, w.subject, w.id, 'held',
		(select c.job_id from trapeze.subjects c where c.kind = w.kind and c.subject = w.subject and c.state = 'free' limit 1)
	from ` + from + ` w where w.free and w.subject <> ''
	order by w.kind, w.subject, (-w.priority), w.run_after, w.id
	on conflict (kind, subject) where state = 'held' do nothing
	returning kind, subject, job_id
), superseded as (
	delete from trapeze.subjects c using guarded g
	where c.kind = g.kind and c.subject = g.subject and c.state = 'free'
)`
}

// guardFree is the condition that no job may run for the subject of row w. The offset 0 makes it a probe of subjects_one_guard;
// without it, the planner would read all guards into a hash table.
const guardFree = `not exists (select from trapeze.subjects c
		where c.kind = w.kind and c.subject = w.subject and c.state = 'held' offset 0)`

// holdsGuard is the condition that an ordered job in row w, which has waited for its retry, holds the guard of its subject. Its row in parked must be
// locked: while it is there, nothing takes its guard. Plan: as for guardFree.
func holdsGuard(w string) string {
	return `(` + w + `.subject <> '' and exists (select from trapeze.subjects c
		where c.kind = ` + w + `.kind and c.subject = ` + w + `.subject and c.state = 'held' and c.job_id = ` + w + `.id offset 0))`
}

// firstOfEach selects the first row p of parked for the subject of row w, for each value of an expression, among the rows that a condition admits. Its cost
// does not depend on the number of rows with the same value. There must be an index on kind, subject, the value and the order.
func firstOfEach(value, condition, order string) string {
	probe := func(also string) string {
		return `(select ` + value + ` as value, p.lane, p.priority, p.run_after, p.id from trapeze.parked p
				where ` + condition + ` and p.kind = w.kind and p.subject = w.subject` + also + `
				order by p.kind, p.subject, ` + value + `, ` + order + ` limit 1)`
	}
	return `(with recursive first as (
			` + probe("") + `
			union all
			select p.* from first f cross join lateral ` + probe(" and "+value+" > f.value") + ` p
		) select * from first)`
}

// waitingFirst selects the first job of each lane that waits for the subject of row w, and whether the lane is open. Plan: one probe of
// parked_for_subject, and one more for each lane; lanes_pkey.
var waitingFirst = `(select f.*, coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = f.lane), false) as opens
		from ` + firstOfEach("p.lane", "p.why = 'subject'", "p.priority desc, p.run_after, p.id") + ` f) p`

// noneWaits is the condition that no job p that meets a condition waits for the subject of row w. The condition must hold for the first job of a
// lane if it holds for any.
func noneWaits(condition string) string {
	return `(select true from ` + waitingFirst + ` where ` + condition + ` limit 1) is null`
}

// duePrecedes is the condition that a due job d of the subject of row w, which has not been promoted yet, precedes a position. It must be promoted first.
// Plan: one probe of parked_due_of_subject, and one more for each priority.
func duePrecedes(position string) string {
	return `coalesce((select true from ` + firstOfEach("(-p.priority)", "p.why in ('scheduled', 'retry', 'snooze') and p.subject <> ''", "p.run_after, p.id") + ` d
			where d.run_after <= now() and ` + position + ` limit 1), false)`
}

// lockFirst locks the first job that is parked for the subject of row w: those in open lanes come first. It selects nothing if another transaction has
// locked that job. Plan: as for waitingFirst; parked_pkey.
var lockFirst = `(select p.id, p.key, p.priority, p.run_after from trapeze.parked p
		where p.id = (select p.id from ` + waitingFirst + ` order by p.opens desc, (-p.priority), p.run_after, p.id limit 1)
			and not ` + duePrecedes("((-d.priority), d.run_after, d.id) < ((-p.priority), p.run_after, p.id)") + ` for update skip locked) h`

// ParkedColumns are the columns that a row of parked shares with its row in live, but for the reason and the due time.
const ParkedColumns = `id, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind, subject, key, start_by`

// admitSQL makes the first parked job of each free subject pending: jobs in open lanes come first, then the more urgent ones. It does not take
// a later job if the first one is locked, or is due but not promoted yet: the job would have to yield at once, and the process that has locked the first job admits it. It
// returns the subjects whose first job it has locked, and the lane of the job that was admitted. Without a lane, another transaction took the guard first,
// and the subject must be asked for again, because a concurrent end may have found the locked row. A job with a key now waits for a place, and leaves
// the subject free. Plan: per subject, one probe of
// subjects_one_guard and parked_pkey, and those of waitingFirst.
var admitSQL = newStatement(`
with heirs as materialized (
	select w.kind, w.subject, h.id, h.key, h.priority, h.run_after, h.key is null as free
	from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral `, lockFirst, `
	where `, guardFree, `
), `, takeGuards("heirs"), `, moved as (
	delete from trapeze.parked p using guarded g where p.id = g.job_id returning p.*
), admitted as (
	insert into trapeze.live (ready_at, state, `, ParkedColumns, `)
	select run_after, 'pending', `, ParkedColumns, ` from moved
), keyed as (
	update trapeze.parked p set why = 'key' from heirs h where h.key is not null and p.id = h.id
)
select kind, subject, '', kind, lane, priority, run_after from moved
union all
select kind, subject, coalesce(key, ''), kind, '', priority, run_after from heirs where id not in (select job_id from guarded)`)

// yieldSQL parks the pending jobs that hold the guard of a subject although another job should run first: one that is more urgent, or
// whose lane is open while the pending job's lane is not. An ordered job that has been claimed before yields to none. The pending job is not running, so the run before it counts as the latest one
// again. A recovered job, which precedes others of its priority, then counts as due since its latest claim. Plan: per subject, one probe of subjects_one_guard and of live_pkey,
// and those of waitingFirst.
var yieldSQL = newStatement(`
with outranked as materialized (
	select l.id from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral (
		select c.job_id from trapeze.subjects c where c.kind = w.kind and c.subject = w.subject and c.state = 'held' limit 1
	) c
	cross join lateral (
		select l.id, l.fence, l.priority, coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = l.lane), false) as opens
		from trapeze.live l where l.id = c.job_id and l.state = 'pending' limit 1
	) l
	where not `, noneWaits("p.opens and (not l.opens or p.priority > l.priority)"), ` and not `, KeepsSubject("l"), `
), held as materialized (
	select l.id from outranked o join trapeze.live l on l.id = any(array[o.id]) where l.state = 'pending' order by o.id for update of l skip locked
), gone as (
	delete from trapeze.live l using held h where l.id = any(array[h.id]) returning l.*
), parked as (
	insert into trapeze.parked (why, run_after, `, ParkedColumns, `)
	select 'subject', case when ready_at > 'epoch' then coalesce(due_at, ready_at) else claimed_at end, `, ParkedColumns, ` from gone
), `, ReleaseGuards, `
select coalesce(key, '') from gone`)

// KeepsSubject is the condition that the job in row l of live is ordered and has been claimed before. Plan: jobs_pkey.
func KeepsSubject(l string) string {
	return `(` + l + `.fence > 0 and (select j.ordered from trapeze.jobs j where j.id = ` + l + `.id))`
}

// ReleaseGuards gives back the guards of the pending jobs in the gone CTE, among them ordered ones that are parked. The run before them is the latest one again, unless that job has
// been deleted or erased in the meantime. Plan: subjects_by_subject, jobs_pkey.
const ReleaseGuards = `released as (
	update trapeze.subjects c set state = 'free', job_id = c.previous_job, previous_job = null from gone g where ` + pendingGuard + `
		and ` + previousExists + `
), deleted_guards as (
	delete from trapeze.subjects c using gone g where ` + pendingGuard + ` and not ` + previousExists + `
)`

const (
	pendingGuard = `g.state = 'pending' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'held'`
	previousExists = `exists (select from trapeze.jobs j where j.id = c.previous_job and j.subject = c.subject offset 0)`
)

// DueJobs selects the due jobs that have not been claimed: the pending ones, and those that wait in a line.
const DueJobs = `(
	select l.id, l.lane, l.kind, l.subject, l.priority, l.ready_at, false as blocked from trapeze.live l where l.state = 'pending'
	union all
	select p.id, p.lane, p.kind, p.subject, p.priority, p.run_after, true from trapeze.parked p where p.why in ('subject', 'key')
)`

// Admitted is the result of an admission.
type Admitted struct {
	Jobs  []AdmittedJob
	Again []Line // lines whose guard or place another transaction took first, or that may have more jobs to admit
}

// AdmittedJob is a job that has become pending.
type AdmittedJob struct {
	Kind     string
	Lane     string
	Priority int
	ReadyAt  time.Time
}

// Admit makes the first job of each subject pending, if the subject is free and no transaction has locked that job.
func (s *Store) Admit(ctx context.Context, subjects []Line) (a Admitted, err error) {
	if len(subjects) == 0 {
		return a, nil
	}
	type row struct {
		Line
		AdmittedJob
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[row], admitSQL, subjectArgs(subjects))
	if err != nil {
		return a, fmt.Errorf("admit the jobs of %d subjects: %w", len(subjects), err)
	}
	for _, r := range found {
		if r.AdmittedJob.Lane != "" {
			a.Jobs = append(a.Jobs, r.AdmittedJob)
			continue
		}
		if r.Line.Key != "" {
			a.Again = append(a.Again, Line{Key: r.Line.Key})
		}
		a.Again = append(a.Again, Line{Kind: r.Line.Kind, Subject: r.Subject})
	}
	return a, nil
}

// Yield takes the guard, and the places, from each subject's pending job if another of its jobs should run first. It returns the key of each of these jobs,
// which is empty if there is none.
func (s *Store) Yield(ctx context.Context, subjects []Line) (keys []string, err error) {
	if len(subjects) == 0 {
		return nil, nil
	}
	if keys, err = run(ctx, s, pgx.RowTo[string], yieldSQL, subjectArgs(subjects)); err != nil {
		return nil, fmt.Errorf("choose between the jobs of %d subjects: %w", len(subjects), err)
	}
	return keys, nil
}

// AdmitNext admits the next jobs of lines, until each subject is busy, each key has as many jobs as it may have, or no more jobs wait. A pending job
// yields to a job that should run before it. Yield comes after Admit: a concurrent admission that does not see a parked job can take the guard
// before. AdmitNext returns the admitted jobs even after an error. It is safe to call it for any line at any time.
func (s *Store) AdmitNext(ctx context.Context, lines ...Line) (jobs []AdmittedJob, err error) {
	subjects, keys := apart(lines)
	next := subjects
	for try := 0; len(next)+len(keys) > 0 && try < 40; try++ { // with more, transactions compete for the same lines without end: a poll decides
		var admitted Admitted
		if try > 0 && len(keys) > 0 || len(next) == 0 { // a job that needs a place first must get it before others take its subject again
			admitted, err = s.AdmitKeys(ctx, keys)
			keys = nil
		} else {
			admitted, err = s.Admit(ctx, next)
			next = nil
		}
		if err != nil {
			return jobs, err
		}
		jobs = append(jobs, admitted.Jobs...)
		again, more := apart(admitted.Again)
		next, keys = append(next, again...), append(keys, more...)
		subjects = append(subjects, again...) // jobs that had to wait for places can precede those that hold the guards
		if len(next)+len(keys) > 0 {
			continue
		}
		yielded, err := s.Yield(ctx, subjects)
		if err != nil {
			return jobs, err
		}
		for _, key := range yielded {
			next = slices.Clone(subjects)
			if key != "" {
				keys = append(keys, key)
			}
		}
	}
	return jobs, nil
}

// apart separates lines into subjects and keys.
func apart(lines []Line) (subjects []Line, keys []string) {
	for _, l := range lines {
		if l.Key == "" {
			subjects = append(subjects, l)
		} else {
			keys = append(keys, l.Key)
		}
	}
	return subjects, keys
}

func subjectArgs(subjects []Line) args {
	kinds, names := make([]string, len(subjects)), make([]string, len(subjects))
	for i, l := range subjects {
		kinds[i], names[i] = l.Kind, l.Subject
	}
	return args{{"kinds", kinds}, {"subjects", names}}
}

// missedSQL returns the next page of lines in which a parked job waits, subjects and keys in their order, and moves the positions that all pods share.
// After the last page it starts again. If another pod is reading a page, it returns nothing. Plan: parked_for_subject and parked_for_key, one probe
// per line; admission is one row.
var missedSQL = newStatement(`
with recursive here as materialized (
	select kind, subject, key from trapeze.admission for update skip locked
), subjects as (
	(select p.kind, p.subject, 1 as no from here h cross join lateral (select p.kind, p.subject from trapeze.parked p
		where p.why = 'subject' and (p.kind, p.subject) > (h.kind, h.subject) order by p.kind, p.subject limit 1) p)
	union all
	select n.kind, n.subject, l.no + 1 from subjects l cross join lateral (select p.kind, p.subject from trapeze.parked p
		where p.why = 'subject' and (p.kind, p.subject) > (l.kind, l.subject) order by p.kind, p.subject limit 1) n
	where l.no < @limit::int
), keys as (
	(select p.key, 1 as no from here h cross join lateral (select p.key from trapeze.parked p
		where p.why = 'key' and p.key > h.key order by p.key limit 1) p)
	union all
	select n.key, l.no + 1 from keys l cross join lateral (select p.key from trapeze.parked p
		where p.why = 'key' and p.key > l.key order by p.key limit 1) n
	where l.no < @limit::int
), moved as (
	update trapeze.admission a set kind = coalesce(s.kind, ''), subject = coalesce(s.subject, ''), key = coalesce(k.key, '')
	from here h left join (select kind, subject from subjects where no = @limit::int) s on true
		left join (select key from keys where no = @limit::int) k on true
	where (a.kind, a.subject, a.key) is distinct from (coalesce(s.kind, ''), coalesce(s.subject, ''), coalesce(k.key, ''))
)
select kind, subject, '' from subjects union all select '', '', key from keys`)

// missedPage is the number of subjects, and of keys, that one poll of a pod examines.
const missedPage = 1000

// AdmitMissed admits the jobs whose subjects are free or whose keys have free places although no process has admitted them, and lets pending jobs yield to
// those that should run first. One call examines up to a thousand subjects and as many keys, and the next call of any pod continues with those that follow.
func (s *Store) AdmitMissed(ctx context.Context) ([]AdmittedJob, error) {
	page, err := run(ctx, s, pgx.RowToStructByPos[Line], missedSQL, args{{"limit", missedPage}})
	if err != nil {
		return nil, fmt.Errorf("find the lines with parked jobs: %w", err)
	}
	return s.AdmitNext(ctx, page...)
}
