package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// subjectPageSQL reads one page of all jobs, because no index covers their subjects. It lists the jobs with the subject, and those whose
// plan contains a step with the subject. If the job.followed event has been pruned, an on-failure job belongs to the subject if its parent
// does or was erased. Plan: jobs_pkey starting after an id, stops at the limit; fan_outs_pkey; for on-failure jobs jobs_pkey and
// job_events_of_job in each retained day.
const subjectPageSQL = `
with page as materialized (
	select j.id, j.subject = $2 and ($3::text is null or j.kind = $3) or j.step = 0 and j.parent_id is not null and j.erased_at is null and exists (
			select from trapeze.jobs p where p.id = j.parent_id and (p.subject = $2 and ($3::text is null or p.kind = $3)
				or p.erased_at is not null and p.subject = '' and p.args::text = '{}')
				and not exists (select from trapeze.job_events e where e.job = p.id and e.event = 'job.followed' and e.fields ->> 'job' = j.id::text)) as has,
		exists (select from json_array_elements(j.planned) p where p ->> 'subject' = $2 and ($3::text is null or p ->> 'kind' = $3)) or exists (
			select from trapeze.fan_outs f cross join json_array_elements(f.plan) p
			where f.id = j.id and p ->> 'subject' = $2 and ($3::text is null or p ->> 'kind' = $3)) as plans
	from trapeze.jobs j where j.id > $1 order by j.id limit $4
)
select coalesce(max(id), 0), count(*), coalesce(array_agg(id) filter (where has), '{}'), coalesce(array_agg(id) filter (where plans and not has), '{}')
from page`

// descendantsSQL lists jobs together with their descendants: later steps, children of their fan-outs, and on-failure jobs. Each row
// contains a job, the listed job from which it descends, and whether its pipeline is open. Plan: jobs_of_pipeline for each job;
// job_events_of_job in each retained day; primary key lookups.
const descendantsSQL = `
with recursive family as (
	select j.id as root, j.id, j.pipeline_id, j.group_id, j.child_no, j.step from trapeze.jobs j where j.id = any($1::bigint[])
	union
	select f.root, n.* from family f cross join lateral (
		select s.id, s.pipeline_id, s.group_id, s.child_no, s.step from trapeze.jobs s
		where s.pipeline_id = f.pipeline_id and coalesce(s.group_id, 0) = coalesce(f.group_id, 0)
			and coalesce(s.child_no, 0) = coalesce(f.child_no, 0) and s.step > f.step and s.step > 0
		union all
		select c.id, c.pipeline_id, c.group_id, c.child_no, c.step from trapeze.jobs c
		where c.pipeline_id = f.pipeline_id and coalesce(c.group_id, 0) = f.id and c.step > 0
		union all
		select o.id, o.pipeline_id, o.group_id, o.child_no, o.step from trapeze.job_events e
		join trapeze.jobs o on o.id = (e.fields ->> 'job')::bigint
		where e.job = f.id and e.event = 'job.followed'
	) n
), pipelines as materialized (
	select p.id, exists (select from (
			select p.id union all select s.id from trapeze.jobs s where s.pipeline_id = p.id and s.step > 0
		) j where coalesce((select true from trapeze.live l where l.id = j.id limit 1),
			(select true from trapeze.parked k where k.id = j.id limit 1), false)) as open
	from (select distinct pipeline_id as id from family) p
)
select f.root, f.id, p.open from family f join pipelines p on p.id = f.pipeline_id order by f.root, f.id`

// eraseSQL removes the data of jobs that have ended. It keeps their rows, with the kind, state and times, because their pipelines' counts
// depend on those rows. erased_at prevents a retry. The jobs' keys are released. Plan: primary key lookups, the id index of done, job_events_of_job,
// unique_keys_of_job, subjects_by_subject; one pass over submissions, which holds only one day of rows.
const eraseSQL = `
with erased as (
	update trapeze.jobs set args = '{}', planned = null, subject = '', key = null, unique_key = null, traceparent = null, erased_at = now()
	where id = any($1::bigint[])
), ends as (
	update trapeze.done set result = null, error = case when error is not null then 'erased' end, error_code = null, undo = null,
		event_no = event_no + 1
	where id = any($1::bigint[])
	returning id, state, fence, event_no
), progress as (
	delete from trapeze.job_progress where id = any($1::bigint[])
), fan_outs as (
	update trapeze.fan_outs set result = null, plan = null where id = any($1::bigint[])
), deferrals as (
	delete from trapeze.deferrals where id = any($1::bigint[])
), parts as (
	delete from trapeze.parts where id = any($1::bigint[])
), keys as (
	delete from trapeze.unique_keys where job_id = any($1::bigint[])
), answers as (
	delete from trapeze.submissions where job_id = any($1::bigint[])
), runs as (
	delete from trapeze.subjects c using trapeze.jobs j
	where j.id = any($1::bigint[]) and j.subject <> '' and c.kind = j.kind and c.subject = j.subject and c.job_id = j.id and c.state = 'free'
), names as (
	update trapeze.pipelines set name = '' where id = any($1::bigint[])
), history as (
	update trapeze.job_events set message = null, fields = case when event = 'job.followed' then fields end where job = any($1::bigint[])
)
insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor)
select id, event_no, fence, state, state, 'job.erased', $2 from ends`

// erasePlansSQL removes the plans of jobs that have ended but whose plans include a step with the subject. Plan: primary key lookups.
const erasePlansSQL = `
with fan_outs as (
	update trapeze.fan_outs set plan = null where id = any($1::bigint[])
)
update trapeze.jobs set planned = null, erased_at = now() where id = any($1::bigint[])`

// auditNames is an SQL condition that selects audit entries that mention the subject: as a subject or unique key in the details, in a URL's
// query string, or as a word in the reason. Entries that record erasures are excluded.
const auditNames = `action <> 'subject.erase' and (before::text ~ $1 or after::text ~ $1 or reason ~ $2)`

// countAuditSQL counts the audit entries that mention the subject. Plan: one pass over audit.
const countAuditSQL = `select count(*) from trapeze.audit where ` + auditNames

// eraseAuditSQL redacts the details and reasons that mention the subject. Plan: one pass over audit.
const eraseAuditSQL = `
update trapeze.audit set before = case when before::text ~ $1 then '{"erased":true}' else before end,
	after = case when after::text ~ $1 then '{"erased":true}' else after end, reason = case when reason ~ $2 then 'erased' else reason end
where ` + auditNames

// schedulesOfSQL lists the schedules that submit jobs for the subject. Plan: one pass over schedules, which is small.
const schedulesOfSQL = `
select name from trapeze.schedules where subject = $1 and ($2::text is null or kind = $2) and not removed order by name`

// enginesSQL lists the engines of all lanes, except the given one. Plan: one pass over lanes, which is small.
const enginesSQL = `select distinct engine from trapeze.lanes where engine <> $1 order by engine`

// erasePage is the number of jobs that one statement reads. eraseBatch is the number of the subject's jobs that one transaction erases,
// along with their descendants.
const erasePage, eraseBatch = 10_000, 200

// Erasure is the result of erasing one page. See [Erase].
type Erasure struct {
	Jobs int     // number of erased jobs
	Open []int64 // the subject's jobs that were kept because they or their descendants have not ended, or ended only during the erasure
	Next int64   // last id read, or 0 after the last page
}

// Erase erases a subject's finished jobs and their descendants, one page at a time. The page starts after the given id and covers the jobs
// of all subjects. An empty kind means all kinds. Each transaction that erases jobs writes an audit entry, which contains only a hash of
// the subject. Erase rereads the page until it finds nothing more to erase, because on-failure jobs may be found only after their parents
// have been erased. With dryRun, it reads the page once and only counts.
func Erase(ctx context.Context, s *store.Store, subject, kind string, after int64, dryRun bool, actor string) (e Erasure, err error) {
	for {
		read, err := eraseFound(ctx, s, subject, kind, after, dryRun, actor)
		e.Jobs, e.Open, e.Next = e.Jobs+read.Jobs, read.Open, read.Next
		if err != nil || read.Jobs == 0 || dryRun {
			return e, err
		}
	}
}

// eraseFound reads a page once and erases the matching jobs.
func eraseFound(ctx context.Context, s *store.Store, subject, kind string, after int64, dryRun bool, actor string) (e Erasure, err error) {
	type page struct {
		Last, Count int64
		Has, Plans  []int64
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[page], subjectPageSQL, after, subject, store.Some(kind), erasePage)
	if err != nil {
		return e, fmt.Errorf("find the jobs of a subject: %w", err)
	}
	if found[0].Count == erasePage {
		e.Next = found[0].Last
	}
	d := AuditEntry{Actor: actor, Action: "subject.erase", Target: SubjectTarget(subject)}
	for i, jobs := range [][]int64{found[0].Has, found[0].Plans} {
		for ids := range slices.Chunk(jobs, eraseBatch) {
			if err := eraseIn(ctx, s, &e, ids, i == 0, dryRun, d); err != nil {
				return e, err
			}
		}
	}
	return e, nil
}

// eraseIn erases jobs with their descendants or, if all is not set, only the jobs' plans. One transaction makes the changes and writes the
// audit entry.
func eraseIn(ctx context.Context, s *store.Store, e *Erasure, roots []int64, all, dryRun bool, d AuditEntry) error {
	var erased int
	var open []int64
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		before, _, err := family(ctx, s, tx, roots, nil)
		if err != nil {
			return err
		}
		// From here on, none of these jobs can be retried. The second read sees all changes made before the jobs were locked. Jobs that
		// only the second read finds are not locked.
		if _, err := upkeep.LockEnded(ctx, s, tx, slices.Sorted(maps.Keys(before))); err != nil {
			return err
		}
		var ids map[int64]bool
		if ids, open, err = family(ctx, s, tx, roots, before); err != nil {
			return err
		}
		list := slices.DeleteFunc(slices.Sorted(maps.Keys(ids)), func(id int64) bool { return !all && !slices.Contains(roots, id) })
		if erased = len(list); erased == 0 || dryRun {
			return nil
		}
		if all {
			_, err = tx.Exec(ctx, s.In(eraseSQL), list, d.Actor)
		} else {
			_, err = tx.Exec(ctx, s.In(erasePlansSQL), list)
		}
		if err != nil {
			return err
		}
		d := d
		d.After = map[string]any{"jobs": erased}
		return auditIn(ctx, s, tx, d)
	})
	if err != nil {
		return fmt.Errorf("erase %d jobs: %w", len(roots), err)
	}
	e.Jobs += erased
	e.Open = append(e.Open, open...)
	return nil
}

// family returns the jobs that can be erased along with the given roots, and the roots that must be kept. A root and all its descendants
// are kept if any of these jobs is open. If locked is not nil, they are also kept if any of them is not locked.
func family(ctx context.Context, s *store.Store, tx pgx.Tx, roots []int64, locked map[int64]bool) (ids map[int64]bool, open []int64, err error) {
	type member struct {
		Root, ID int64
		Open     bool
	}
	list, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[member], s.In(descendantsSQL), []any{roots})
	if err != nil {
		return nil, nil, err
	}
	stays := map[int64]bool{}
	for _, m := range list {
		if (m.Open || locked != nil && !locked[m.ID]) && !stays[m.Root] {
			stays[m.Root] = true
			open = append(open, m.Root)
		}
	}
	ids = map[int64]bool{}
	for _, m := range list {
		if !stays[m.Root] {
			ids[m.ID] = true
		}
	}
	return ids, open, nil
}

// AuditErasure is the result of [EraseAudit], with the other places that may still contain the subject.
type AuditErasure struct {
	AuditEntries int      // entries from which the subject was removed
	Schedules    []string // schedules that will submit further jobs for the subject
	Engines      []string // engines of lanes, except PostgreSQL, which may have copies of erased jobs
}

// EraseAudit removes a subject from the audit log, regardless of the kind, and writes an audit entry with the number of changed entries.
// With dryRun, it only counts. It also lists the engines, and the schedules of the kind or, if kind is empty, of all kinds.
func EraseAudit(ctx context.Context, s *store.Store, subject, kind string, dryRun bool, actor string) (done AuditErasure, err error) {
	if done.Schedules, err = store.Rows(ctx, s, pgx.RowTo[string], schedulesOfSQL, subject, store.Some(kind)); err != nil {
		return done, err
	}
	if done.Engines, err = store.Rows(ctx, s, pgx.RowTo[string], enginesSQL, job.EnginePostgreSQL); err != nil {
		return done, err
	}
	raw, err := json.Marshal(subject)
	if err != nil {
		return done, err
	}
	quoted := regexp.QuoteMeta
	named := `"(subject|unique_key)": ?` + quoted(string(raw)) + `|subject=` + inQuery(subject) + `("|&|\\u0026)`
	word := `(^|[^[:alnum:]_])` + quoted(subject) + `($|[^[:alnum:]_])`
	if dryRun {
		done.AuditEntries, err = view.One(store.Rows(ctx, s, pgx.RowTo[int], countAuditSQL, named, word))
		return done, text.Wrap(err, "count the audit entries of a subject")
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.In(eraseAuditSQL), named, word)
		if err != nil {
			return err
		}
		done.AuditEntries = int(tag.RowsAffected())
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "subject.erase", Target: SubjectTarget(subject), After: map[string]any{"audit_entries": done.AuditEntries}})
	})
	return done, text.Wrap(err, "erase a subject from the audit")
}

// inQuery returns a regular expression that matches every encoding of a text in a query string. Each character may be literal or
// percent-encoded, and a space may also be a plus sign.
func inQuery(text string) string {
	var b strings.Builder
	for _, r := range text {
		b.WriteString("(" + regexp.QuoteMeta(string(r)) + "|")
		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&b, "%%(%02x|%02X)", c, c)
		}
		if r == ' ' {
			b.WriteString(`|\+`)
		}
		b.WriteString(")")
	}
	return b.String()
}

// SubjectTarget returns the name under which a subject appears in the audit log. The name contains the start of the subject's SHA-256 hash
// instead of its text.
func SubjectTarget(subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return "subject sha256:" + hex.EncodeToString(sum[:16])
}

// deletableSQL lists all jobs in the pipeline that starts with the given job, and whether each job has ended. For a later step of a
// pipeline, it lists only that step. Plan: jobs_pkey, jobs_of_pipeline; primary key lookups.
const deletableSQL = `
select j.id, j.pipeline_id, not coalesce((select true from trapeze.live l where l.id = j.id limit 1),
	(select true from trapeze.parked p where p.id = j.id limit 1), false)
from (
	select f.id, f.pipeline_id from trapeze.jobs f where f.id = $1
	union all
	select s.id, s.pipeline_id from trapeze.jobs s where s.pipeline_id = $1 and s.step > 0
) j`

// deleteEndsSQL deletes the done rows of jobs, the row of their pipeline, and the idempotency keys that refer to them. Plan: the id index of done of
// each day; pipelines_pkey; one pass over submissions, which holds only one day of rows.
const deleteEndsSQL = `
with pipeline as (
	delete from trapeze.pipelines where id = $1
), answers as (
	delete from trapeze.submissions where job_id = any($2::bigint[])
)
delete from trapeze.done where id = any($2::bigint[])`

// Delete deletes a job that has ended. For the first job in a pipeline, it deletes the whole pipeline. A later step cannot be deleted
// alone, because the other jobs depend on it. The history is kept until its retention period has passed. Delete returns the number of
// deleted jobs. It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotTerminal] if a job has not ended or is still awaited,
// and [job.ErrPartOfPipeline] if the job is a later step.
func Delete(ctx context.Context, s *store.Store, id int64, actor string) (n int, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		ids, err := deletable(ctx, s, tx, id)
		if err != nil {
			return err
		}
		// From here on, none of these jobs can be retried. Relisting the jobs reveals changes made before they were locked.
		if _, err := upkeep.LockEnded(ctx, s, tx, ids); err != nil {
			return err
		}
		locked := len(ids)
		if ids, err = deletable(ctx, s, tx, id); err != nil {
			return err
		}
		if len(ids) != locked {
			return job.ErrNotTerminal // one of the jobs was retried in the meantime
		}
		awaited, err := upkeep.DeleteJobs(ctx, s, tx, ids)
		if err != nil {
			return err
		}
		if awaited > 0 {
			return job.ErrNotTerminal
		}
		if _, err := tx.Exec(ctx, s.In(deleteEndsSQL), id, ids); err != nil {
			return err
		}
		n = len(ids)
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.delete", Target: jobTarget(id), After: map[string]any{"jobs": n}})
	})
	return n, text.Wrap(err, "delete job %d", id)
}

// deletable lists the jobs that must be deleted together with the given job.
func deletable(ctx context.Context, s *store.Store, tx pgx.Tx, id int64) (ids []int64, err error) {
	type row struct {
		ID, Pipeline int64
		Ended        bool
	}
	list, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[row], s.In(deletableSQL), []any{id})
	if err != nil {
		return nil, err
	}
	for _, j := range list {
		switch {
		case !j.Ended && j.ID == id:
			return nil, job.ErrNotTerminal
		case j.Pipeline != id:
			return nil, fmt.Errorf("pipeline %d: %w", j.Pipeline, job.ErrPartOfPipeline)
		case !j.Ended:
			return nil, fmt.Errorf("job %d of the pipeline: %w", j.ID, job.ErrNotTerminal)
		}
		ids = append(ids, j.ID)
	}
	if len(ids) == 0 {
		return nil, job.ErrNotFound
	}
	return ids, nil
}
