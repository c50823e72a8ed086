package view

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// StatsBy selects how [StatsRows.By] groups rows.
type StatsBy string

// These are the possible groupings.
const (
	ByLane StatsBy = "lane"
	ByKind StatsBy = "kind"
)

// StatsFilter selects the statistics that [ReadStats] reads.
type StatsFilter struct {
	Window     time.Duration // length of a period in StatsWindows
	Lane, Kind string        // only this lane or kind; empty means all
}

// StatsWindow is a period that [ReadStats] can read, with the length of its intervals.
type StatsWindow struct {
	Name          string
	Length, Every time.Duration
}

// StatsWindows lists the available periods. In all periods but the first, intervals are whole hours, because older rows are aggregated by
// hour.
var StatsWindows = []StatsWindow{
	{"1h", time.Hour, time.Minute}, {"24h", 24 * time.Hour, time.Hour}, {"7d", 7 * 24 * time.Hour, 3 * time.Hour}, {"30d", 30 * 24 * time.Hour, 12 * time.Hour},
}

// Window returns the period with the given name. An empty name means the last hour.
func Window(name string) (StatsWindow, error) {
	for _, w := range StatsWindows {
		if w.Name == name || name == "" {
			return w, nil
		}
	}
	return StatsWindow{}, fmt.Errorf("window %q: want 1h, 24h, 7d or 30d", name)
}

// statsSQL reads the rows in a period, newest first. It omits minutes that have not begun, which exist if the database's clock was ahead.
// Plan: stats_by_time backwards, to the start of the period, stops at the limit.
const statsSQL = `
select s.at, s.lane, s.kind, s.state, s.jobs, s.wait, s.run from trapeze.stats s
where s.at >= $1 and s.at <= $5 and ($2::text is null or s.lane = $2) and ($3::text is null or s.kind = $3) order by s.at desc limit $4`

// statsRead is the maximum number of rows that ReadStats reads. Reading 100,000 rows takes about half a second.
const statsRead = 100_000

// StatsRows holds the rows of a period. [StatsRows.By] aggregates them.
type StatsRows struct {
	in   job.Stats // the period
	rows []telemetry.MinuteRow
}

// ReadStats reads the statistics of jobs that ended in a period, from all pods.
func ReadStats(ctx context.Context, s *store.Store, f StatsFilter) (StatsRows, error) {
	window := slices.IndexFunc(StatsWindows, func(w StatsWindow) bool { return w.Length == f.Window })
	if window < 0 {
		return StatsRows{}, fmt.Errorf("%w: no numbers for a period of %s", job.ErrInvalid, f.Window)
	}
	now, err := Now(ctx, s)
	if err != nil {
		return StatsRows{}, err
	}
	in := job.Stats{Window: job.Seconds(f.Window), Every: job.Seconds(StatsWindows[window].Every), At: now}
	in.Since = now.Add(-f.Window).Truncate(in.Every.Duration())
	rows, err := store.Rows(ctx, s, scanStats, statsSQL, now.Add(-f.Window), store.Some(f.Lane), store.Some(f.Kind), statsRead, now)
	if err != nil {
		return StatsRows{}, fmt.Errorf("read the numbers of ended jobs: %w", err)
	}
	if len(rows) == statsRead {
		in.ReadSince = &rows[statsRead-1].At
	}
	return StatsRows{in, rows}, nil
}

// scanStats scans a row. pgx decodes a FlatArray without reflection, which makes reading several times faster.
func scanStats(row pgx.CollectableRow) (r telemetry.MinuteRow, err error) {
	var wait, run pgtype.FlatArray[int64]
	err = row.Scan(&r.At, &r.Lane, &r.Kind, &r.State, &r.Jobs, &wait, &run)
	r.Wait, r.Run = telemetry.TimeBuckets(wait), telemetry.TimeBuckets(run)
	return r, err
}

// mostGroups limits the lanes or kinds that [StatsRows.By] lists. Clients choose the names of kinds, and each group takes 6 KB.
const mostGroups = 200

// By aggregates the rows, in total and for each lane or kind. All but the 200 with the most jobs are combined as "(other)".
func (r StatsRows) By(by StatsBy) job.Stats {
	nameOf := func(row telemetry.MinuteRow) string {
		if by == ByLane {
			return row.Lane
		}
		return row.Kind
	}
	jobs := map[string]int64{}
	for _, row := range r.rows {
		jobs[nameOf(row)] += row.Jobs
	}
	names := slices.SortedFunc(maps.Keys(jobs), func(x, y string) int { return cmp.Or(cmp.Compare(jobs[y], jobs[x]), cmp.Compare(x, y)) })
	made, total, groups := r.in, newGroup("", r.in), map[string]*group{}
	for i, name := range names {
		switch {
		case i < mostGroups:
			groups[name] = newGroup(name, r.in)
		case i == mostGroups && groups[telemetry.OtherKinds] == nil:
			groups[telemetry.OtherKinds] = newGroup(telemetry.OtherKinds, r.in)
		}
	}
	for _, row := range r.rows {
		one := groups[nameOf(row)]
		if one == nil {
			one = groups[telemetry.OtherKinds]
		}
		one.add(row, r.in)
		total.add(row, r.in)
	}
	made.Total, made.Of = total.result(true), []job.StatsOf{}
	for _, g := range groups {
		made.Of = append(made.Of, g.result(false))
	}
	slices.SortFunc(made.Of, func(x, y job.StatsOf) int {
		return cmp.Or(cmp.Compare(y.Finished, x.Finished), cmp.Compare(x.Name, y.Name))
	})
	return made
}

// group accumulates the rows for one lane, one kind or the total.
type group struct {
	job.StatsOf
	waits, runs []telemetry.TimeBuckets // by interval
}

func newGroup(name string, in job.Stats) *group {
	n := int(in.At.Sub(in.Since)/in.Every.Duration()) + 1
	g := &group{StatsOf: job.StatsOf{Name: name, Intervals: make([]job.StatsInterval, n)}, waits: make([]telemetry.TimeBuckets, n), runs: make([]telemetry.TimeBuckets, n)}
	for i := range g.Intervals {
		g.Intervals[i].At = in.Since.Add(time.Duration(i) * in.Every.Duration())
	}
	return g
}

func (g *group) add(row telemetry.MinuteRow, in job.Stats) {
	i := int(row.At.Sub(in.Since) / in.Every.Duration())
	g.waits[i].Add(row.Wait)
	g.runs[i].Add(row.Run)
	g.Finished += row.Jobs
	g.Intervals[i].Finished += row.Jobs
	switch row.State {
	case job.Succeeded:
		g.Succeeded += row.Jobs
	case job.Failed:
		g.Failed += row.Jobs
		g.Intervals[i].Failed += row.Jobs
	case job.Cancelled:
		g.Cancelled += row.Jobs
	}
}

// result returns the statistics with quantiles. If each is true, every interval also includes quantiles.
func (g *group) result(each bool) job.StatsOf {
	var wait, run telemetry.TimeBuckets
	for i := range g.Intervals {
		wait.Add(g.waits[i])
		run.Add(g.runs[i])
		if each {
			g.Intervals[i].WaitP95, g.Intervals[i].RunP95 = quantile(g.waits[i], 0.95), quantile(g.runs[i], 0.95)
		}
	}
	g.WaitP50, g.WaitP95 = quantile(wait, 0.5), quantile(wait, 0.95)
	g.RunP50, g.RunP95 = quantile(run, 0.5), quantile(run, 0.95)
	return g.StatsOf
}

func quantile(h telemetry.TimeBuckets, share float64) *job.Seconds {
	d, known := h.Quantile(share)
	if !known {
		return nil
	}
	s := job.Seconds(d.Round(10 * time.Microsecond))
	return &s
}

const (
	// kindJobsSQL counts running and waiting jobs by kind. Plan: one pass over live, as for boardSlotsSQL.
	kindJobsSQL = `
select l.kind, count(*) filter (where l.state = 'running')::int, count(*) filter (where l.state = 'pending')::int,
	min(case when l.state = 'pending' and l.ready_at > 'epoch' then l.ready_at end)
from ` + dueOrRunning + ` l group by l.kind`

	// kindPodsSQL lists the open pods with the kinds that they handle. Plan: one pass over pods and remote_workers, which are small.
	kindPodsSQL = `
select p.name, p.version, p.kinds, w.pod is not null, p.limits
from trapeze.pods p left join trapeze.remote_workers w on w.pod = p.id
where p.closed_at is null order by p.name, p.started_at, p.id limit $1`
)

// mostKindPods is the maximum number of pods whose kinds are read.
const mostKindPods = 1000

// Kinds describes each kind that a pod handles, that has running or due jobs, or whose jobs ended in the period. The second result holds
// the statistics for all kinds combined.
func Kinds(ctx context.Context, s *store.Store, window time.Duration) (list []job.KindUse, ended job.Stats, err error) {
	rows, err := ReadStats(ctx, s, StatsFilter{Window: window})
	if err != nil {
		return nil, ended, err
	}
	ended = rows.By(ByKind)
	kinds := map[string]*job.KindUse{}
	of := func(kind string) *job.KindUse {
		if kinds[kind] == nil {
			kinds[kind] = &job.KindUse{Kind: kind, Ended: job.StatsOf{Name: kind}, Handlers: []job.KindHandler{}}
		}
		return kinds[kind]
	}
	for _, statsOf := range ended.Of {
		of(statsOf.Name).Ended = statsOf
	}
	if err := countKindJobs(ctx, s, of); err != nil {
		return nil, ended, err
	}
	if err := readKindPods(ctx, s, of); err != nil {
		return nil, ended, err
	}
	lanes, err := LanesUpTo(ctx, s, 0)
	if err != nil {
		return nil, ended, err
	}
	laneOf, byName := map[string]string{}, map[string]job.LaneUse{}
	for _, lane := range lanes {
		byName[lane.Name] = lane
		for _, kind := range lane.Kinds {
			laneOf[kind] = lane.Name
		}
	}
	list = []job.KindUse{}
	for _, kindUse := range kinds {
		kindUse.Lane = cmp.Or(laneOf[kindUse.Kind], "default")
		kindUse.Slots, kindUse.SlotsPerPod = byName[kindUse.Lane].Slots, byName[kindUse.Lane].SlotsPerPod
		list = append(list, *kindUse)
	}
	ended.Of = []job.StatsOf{}
	return list, ended, nil
}

func countKindJobs(ctx context.Context, s *store.Store, of func(kind string) *job.KindUse) error {
	type row struct {
		Kind             string
		Running, Waiting int
		Oldest           *time.Time
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindJobsSQL)
	if err != nil {
		return fmt.Errorf("count the jobs of each kind: %w", err)
	}
	for _, r := range rows {
		k := of(r.Kind)
		k.Running, k.Waiting, k.Oldest = r.Running, r.Waiting, r.Oldest
	}
	return nil
}

func readKindPods(ctx context.Context, s *store.Store, of func(kind string) *job.KindUse) error {
	type row struct {
		Name, Version string
		Kinds         []string
		Remote        bool
		Limits        []byte
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindPodsSQL, mostKindPods)
	if err != nil {
		return fmt.Errorf("list the kinds of the pods: %w", err)
	}
	for _, r := range rows {
		limits := map[string]*job.KindLimits{}
		if r.Limits != nil {
			if err := json.Unmarshal(r.Limits, &limits); err != nil {
				return fmt.Errorf("read the limits of pod %s: %w", r.Name, err)
			}
		}
		for _, kind := range r.Kinds {
			k, h := of(kind), job.KindHandler{Version: r.Version, Pods: []string{r.Name}, Remote: r.Remote, Limits: limits[kind]}
			same := slices.IndexFunc(k.Handlers, func(o job.KindHandler) bool {
				return o.Version == h.Version && o.Remote == h.Remote && reflect.DeepEqual(o.Limits, h.Limits)
			})
			if same < 0 {
				k.Handlers = append(k.Handlers, h)
			} else {
				k.Handlers[same].Pods = append(k.Handlers[same].Pods, r.Name)
			}
		}
	}
	return nil
}

// KindOrders lists the orders that [SortKinds] accepts.
var KindOrders = []string{"run_p95", "run_p50", "wait_p95", "wait_p50", "finished", "failed", "running", "waiting", "kind"}

// SortKinds sorts kinds by a column, with the largest value first, and then by name. An empty order means run_p95.
func SortKinds(list []job.KindUse, order string) error {
	if order == "" {
		order = KindOrders[0]
	}
	if !slices.Contains(KindOrders, order) {
		return fmt.Errorf("%w: order %q: want one of %s", job.ErrInvalid, order, strings.Join(KindOrders, ", "))
	}
	value := func(k job.KindUse) float64 {
		quantile := map[string]*job.Seconds{"run_p95": k.Ended.RunP95, "run_p50": k.Ended.RunP50, "wait_p95": k.Ended.WaitP95, "wait_p50": k.Ended.WaitP50}[order]
		if quantile != nil {
			return quantile.Duration().Seconds()
		}
		return float64(map[string]int64{"finished": k.Ended.Finished, "failed": k.Ended.Failed, "running": int64(k.Running), "waiting": int64(k.Waiting)}[order])
	}
	slices.SortFunc(list, func(a, b job.KindUse) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.Kind, b.Kind))
	})
	return nil
}

// MostFailures is the maximum number of jobs that [Failures] reads.
const MostFailures = 10_000

// failuresSQL reads the jobs that failed in a period, latest failure first. Plan: done_failed_by_end backwards in each day of the period,
// stops at the limit; jobs_pkey for each job.
const failuresSQL = `
select j.id, j.kind, j.subject, d.attempt, d.finished_at, d.class, d.error from (
	select ` + failureColumns + ` from trapeze.done_failed d
	where d.finished_at >= coalesce($1::timestamptz, '-infinity') and d.finished_at <= coalesce($2::timestamptz, 'infinity')
	order by d.finished_at desc, d.id desc limit $3
) d join trapeze.jobs j on j.id = d.id
order by d.finished_at desc, d.id desc`

// ownFailuresSQL reads the newest jobs of submitter $3, and the failures of those that failed since $1. The other rows contain no failure.
// Plan: jobs_by_submitter backwards, stops at the limit; the id index of done in the days since a job was created.
const ownFailuresSQL = `
select j.id, j.kind, j.subject, j.created_at, d.attempt, d.finished_at, d.class, d.error from (
	select id, kind, subject, created_at from trapeze.jobs where submitter = $3 and submitter <> '' order by created_at desc, id desc limit $2
) j left join lateral (
	select ` + failureColumns + ` from trapeze.done_failed d
	where ` + endedSince + ` and d.finished_at >= coalesce($1::timestamptz, '-infinity') limit 1
) d on true`

const failureColumns = `d.id, d.attempt, d.finished_at, coalesce(d.error_class, '') as class, left(coalesce(nullif(d.error, ''), d.reason), 500) as error`

// Failures groups the jobs that have failed since a time, or all failed jobs if since is zero. If owner is not empty, it considers only
// that owner's jobs. It reads at most 10,000 jobs: the latest failures, or the owner's newest jobs.
func Failures(ctx context.Context, s *store.Store, since time.Time, owner string) (failures.List, error) {
	until, err := Now(ctx, s)
	if err != nil {
		return failures.List{}, err
	}
	from := store.Some(since)
	read := func() ([]failures.Job, *time.Time, error) { return failedJobs(ctx, s, from, nil) }
	if owner != "" {
		read = func() ([]failures.Job, *time.Time, error) { return ownFailedJobs(ctx, s, from, owner) }
	}
	jobs, reached, err := read()
	if err != nil {
		return failures.List{}, fmt.Errorf("read the failed jobs: %w", err)
	}
	retrying, err := retryingJobs(ctx, s, from, owner)
	if err != nil {
		return failures.List{}, err
	}
	complete := reached == nil || !reached.After(since)
	switch {
	case !complete:
		since = *reached
	case since.IsZero() && len(jobs) > 0:
		since = jobs[len(jobs)-1].FailedAt
	case since.IsZero():
		since = until
	}
	return failures.New(jobs, since, until, complete).AddRetrying(retrying, len(retrying) < mostRetrying), nil
}

// [retryingSQL] reads at most mostRetrying jobs, from the mostParked parked jobs that become due first.
const (
	mostRetrying = 1000
	mostParked   = 10_000
)

// retryingSQL reads jobs whose latest attempt failed since $1 and that are waiting for their next attempt, latest failure first. It
// considers only the $3 parked jobs that become due first, because retries become due soon. Plan: parked_for_promotion, stops at the limit;
// jobs_pkey for each; job_events_of_job backwards in the days of the run, stops at the first event.
const retryingSQL = `
select p.id, p.kind, p.subject, p.attempt, e.at, e.class, e.error from (
	select s.* from (
		select id, kind, subject, attempt, why, started_at, run_after, event_no from trapeze.parked
		where why in ('scheduled', 'retry', 'snooze') order by run_after, id limit $3
	) s where s.why = 'retry' and ($2::text is null or coalesce((select j.submitter = $2 and j.submitter <> '' from trapeze.jobs j where j.id = s.id), false))
	limit $4
) p cross join lateral (
	select e.at, coalesce(e.fields ->> 'error_class', '') as class, left(coalesce(e.message, ''), 500) as error from trapeze.job_events e
	where e.job = p.id and e.event_no <= p.event_no and e.event = 'job.retried' and e.at >= p.started_at - interval '1 day' and e.at <= p.run_after
	order by e.event_no desc limit 1
) e
where e.at >= coalesce($1::timestamptz, '-infinity') order by e.at desc, p.id desc`

// retryingJobs reads jobs that are waiting for another attempt, with the error of the latest one. If owner is not empty, it reads only that
// owner's jobs.
func retryingJobs(ctx context.Context, s *store.Store, from *time.Time, owner string) ([]failures.Job, error) {
	jobs, err := store.Rows(ctx, s, pgx.RowToStructByPos[failures.Job], retryingSQL, from, store.Some(owner), mostParked, mostRetrying)
	if err != nil {
		return nil, fmt.Errorf("read the jobs that are retried: %w", err)
	}
	for i := range jobs {
		jobs[i].Error = failures.Line(jobs[i].Error)
	}
	return jobs, nil
}

// failedJobs reads the jobs that failed in a period. If it reaches the limit before the start of the period, it also returns how far back
// it has read.
func failedJobs(ctx context.Context, s *store.Store, from, to *time.Time) (jobs []failures.Job, reached *time.Time, err error) {
	jobs, err = store.Rows(ctx, s, pgx.RowToStructByPos[failures.Job], failuresSQL, from, to, MostFailures)
	if len(jobs) == MostFailures {
		reached = &jobs[len(jobs)-1].FailedAt
	}
	for i := range jobs {
		jobs[i].Error = failures.Line(jobs[i].Error)
	}
	return jobs, reached, err
}

// ownFailedJobs reads an owner's newest jobs and returns those that failed. If there may be older jobs, it also returns the creation time
// of the oldest job that it read.
func ownFailedJobs(ctx context.Context, s *store.Store, from *time.Time, owner string) (jobs []failures.Job, reached *time.Time, err error) {
	type row struct {
		ID            int64
		Kind, Subject string
		CreatedAt     time.Time
		Attempt       *int
		FailedAt      *time.Time
		Class         *job.ErrorClass
		Error         *string
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], ownFailuresSQL, from, MostFailures, owner)
	for _, r := range rows {
		if r.FailedAt != nil {
			jobs = append(jobs, failures.Job{ID: r.ID, Kind: r.Kind, Subject: r.Subject, Attempt: *r.Attempt, FailedAt: *r.FailedAt, Class: *r.Class, Error: failures.Line(*r.Error)})
		}
	}
	slices.SortFunc(jobs, func(a, b failures.Job) int { return b.FailedAt.Compare(a.FailedAt) })
	if len(rows) == MostFailures {
		reached = &rows[len(rows)-1].CreatedAt
	}
	return jobs, reached, err
}

// FailureSet returns the ids of the jobs in a set of failures. If owner is not empty, the set must be limited to that owner's jobs.
// FailureSet returns [job.ErrConflict] if the group no longer matches the set, and [job.ErrInvalid] if text does not describe a set.
func FailureSet(ctx context.Context, s *store.Store, text, owner string) ([]int64, error) {
	set, err := failures.ParseSet(text)
	if err != nil {
		return nil, err
	}
	var jobs []failures.Job
	if owner == "" {
		jobs, _, err = failedJobs(ctx, s, &set.First, &set.Last)
	} else {
		jobs, _, err = ownFailedJobs(ctx, s, &set.First, owner)
		jobs = slices.DeleteFunc(jobs, func(failed failures.Job) bool { return failed.FailedAt.After(set.Last) })
	}
	if err != nil {
		return nil, fmt.Errorf("read the set of failures %s: %w", set.Group, err)
	}
	return set.IDs(jobs)
}

// Failure returns the job whose failure started a pipeline, which is the parent of the pipeline's first job. Failure returns
// [job.ErrNotFound] if there is no such job or if it has been pruned.
func Failure(ctx context.Context, s *store.Store, pipeline int64) (f job.Failure, err error) {
	first, err := Job(ctx, s, pipeline)
	if err != nil {
		return f, err
	}
	if first.ParentID == nil {
		return f, fmt.Errorf("pipeline %d follows no failure: %w", pipeline, job.ErrNotFound)
	}
	failed, err := Job(ctx, s, *first.ParentID)
	if err != nil {
		return f, err
	}
	return job.Failure{JobID: failed.ID, PipelineID: failed.PipelineID, Kind: failed.Kind, Subject: failed.Subject, Key: failed.Key, JSON: failed.Args,
		State: failed.State, Reason: valueOf(failed.Reason), Error: valueOf(failed.Error), ErrorClass: valueOf(failed.ErrorClass),
		ErrorCode: valueOf(failed.ErrorCode), Attempt: failed.Attempt}, nil
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
