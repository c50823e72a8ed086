package store_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
)

// tableSQL returns the contents of all tables, one line per row. It replaces times with the order in which the jobs of a lane are claimed
// and the order in which parked jobs become due.
const tableSQL = `
select json_build_array('job', id, kind, lane, subject, state, is_current, priority, attempt, crashes, fence,
	epoch, pod, pipeline_id, parent_id, step, args::text, result::text, outcome, reason, error, progress_done, progress_total,
	progress_message, unique_key, submitter, started_at is not null, finished_at is not null, cancel_requested, event_no, error_class, error_code)::text
from trapeze.job
union all select json_build_array('live', lane, row_number() over (partition by lane order by priority desc, ready_at, id),
	id, isolated, unique_while, writes, ready_at = 'epoch')::text from trapeze.live
union all select json_build_array('parked', row_number() over (order by run_after, id), id, why, isolated, unique_while)::text
from trapeze.parked
union all select json_build_array('run', kind, subject, job_id, state, previous_job)::text from trapeze.subjects
union all select json_build_array('unique', kind, key, job_id)::text from trapeze.unique_keys
union all select json_build_array('cancel', job_id, fence, pod, reason)::text from trapeze.cancel_requests
union all select json_build_array('checkpoint', id, checkpoint::text)::text from trapeze.job_progress where checkpoint is not null
union all select json_build_array('snoozes', id, snoozes)::text from trapeze.job_progress where snoozes > 0
union all select json_build_array('pod', id, name, draining, closed_at is null and lease_until < now(), closed_at is not null,
	swept_at is not null)::text from trapeze.pods
union all select json_build_array('lane', name, slots_per_pod, enabled, drained)::text from trapeze.lanes
union all select json_build_array('queue_state', paused)::text from trapeze.queue_state
union all select json_build_array('event', coalesce(job, 0), case when job is null then 0 else event_no end, from_state, to_state,
	event, pod, fence, actor, level, message, coalesce(fields->>'path', fields->>'crashes', fields->>'attempt', fields->>'count', fields->>'error_code'))::text
from trapeze.job_event
union all select json_build_array('no job', j.id)::text from trapeze.jobs j
where not exists (select from trapeze.job v where v.id = j.id)
union all select json_build_array('broken', b.rule, b.id)::text from (` + brokenRulesSQL + `) b`

// brokenRulesSQL lists the jobs that break a rule of admission. The model cannot break these rules without notice, because its table has no
// such lines.
const brokenRulesSQL = `
select 'a job is in exactly one of live, parked and done' as rule, j.id from trapeze.jobs j
where (select count(*) from (select id from trapeze.live union all select id from trapeze.parked union all select id from trapeze.done) p where p.id = j.id) <> 1
union all select 'a live job with a subject holds its guard', l.id from trapeze.live l where l.subject <> '' and not exists (
	select from trapeze.subjects c where c.kind = l.kind and c.subject = l.subject and c.job_id = l.id and c.state = 'held')
union all select 'the job of a guard is live, or ordered and waits for its retry', c.job_id from trapeze.subjects c where c.state = 'held' and not exists (
	select from trapeze.live l where l.id = c.job_id and l.kind = c.kind and l.subject = c.subject) and not exists (
	select from trapeze.parked p join trapeze.jobs j on j.id = p.id where p.id = c.job_id and p.why in ('retry', 'snooze') and j.ordered)
union all select 'only a job with a subject waits for it', p.id from trapeze.parked p where p.why = 'subject' and p.subject = ''`

// table reads the database's contents.
func table(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	result, err := pool.Query(ctx, tableSQL)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for i, line := range lines {
		var fields []any
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			return nil, err
		}
		lines[i] = asLine(fields...)
	}
	slices.Sort(lines)
	return lines, nil
}

// table returns the model's contents in the same format.
func (m *model) table() []string {
	var lines []string
	add := func(fields ...any) { lines = append(lines, asLine(fields...)) }
	for _, j := range m.jobs {
		add(append([]any{"job"}, m.row(j)...)...)
		if j.checkpoint != "" {
			add("checkpoint", j.ID, j.checkpoint)
		}
		if j.snoozes > 0 {
			add("snoozes", j.ID, j.snoozes)
		}
	}
	places := map[string]int{}
	for _, j := range slices.SortedFunc(slices.Values(m.pick((*modelJob).live)), urgency) {
		places[j.Lane]++
		add("live", j.Lane, places[j.Lane], j.ID, j.isolated, none(j.uniqueWhile), j.writes, j.at == 0)
	}
	parked := m.pick((*modelJob).parked)
	slices.SortStableFunc(parked, func(a, b *modelJob) int { return cmp.Compare(a.at, b.at) })
	for i, j := range parked {
		add("parked", i+1, j.ID, j.why, j.isolated, none(j.uniqueWhile))
	}
	for k, r := range m.runs {
		add("run", k.Kind, k.Subject, r.job, r.state, noID(r.previous))
	}
	for k, id := range m.keys {
		add("unique", k.Kind, k.Subject, id)
	}
	for l, reason := range m.cancels {
		add("cancel", l.JobID, l.Fence, l.Pod, reason)
	}
	for podID, p := range m.pods {
		add("pod", podID, p.name, p.draining, p.lapsed && !p.closed, p.closed, p.swept)
	}
	for _, l := range m.lanes {
		add("lane", l.Name, l.SlotsPerPod, l.Enabled, l.Drained)
	}
	add("queue_state", m.paused)
	for _, e := range m.events {
		add("event", e.job, e.no, e.from, e.to, e.event, none(e.podID), e.fence, e.actor, none(e.level), none(e.text), none(e.note))
	}
	slices.Sort(lines)
	return lines
}

// row returns a job as it appears in the job view.
func (m *model) row(j *modelJob) []any {
	reason := string(j.reason)
	switch {
	case j.parked():
		reason = j.why
	case j.cancel:
		reason = "cancel_requested"
	}
	p := job.Progress{}
	if j.progress != nil {
		p = *j.progress
	}
	return []any{j.ID, j.Kind, j.Lane, j.Subject, j.state, j.Subject != "" && m.current(j.key()) == j.ID, j.Priority, j.attempt,
		j.crashes, j.fence, 1 + j.retries, none(j.pod), j.PipelineID, j.ParentID, j.Step, string(j.Args), none(j.result), none(string(j.outcome)),
		none(reason), none(j.failure), p.Done, p.Total, p.Message, j.UniqueKey, j.Submitter, j.started, j.done(), j.cancel, j.eventNo, none(j.class),
		none(j.code)}
}

// none returns nil for an empty string.
func none(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func noID(id int64) any {
	if id == 0 {
		return nil
	}
	return id
}

func asLine(fields ...any) string {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(line)
}

// differs returns the differences between the contents of the database and those of the model, or an empty string if there are none. A line
// that occurs twice on one side counts as a difference.
func differs(database, model []string) string {
	if slices.Equal(database, model) {
		return ""
	}
	count := map[string]int{}
	for _, line := range database {
		count[line]++
	}
	for _, line := range model {
		count[line]--
	}
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(count)) {
		switch n := count[line]; {
		case n > 0:
			fmt.Fprintf(&b, "\n  only the database has %s", line)
		case n < 0:
			fmt.Fprintf(&b, "\n  only the model has    %s", line)
		}
	}
	return b.String()
}
