package view

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// standingSQL reads everything that may keep a waiting job from running: the job's row, its lane, the queue state and the pods. Plan:
// live_pkey, parked_pkey, subjects_one_guard and other primary keys, and KeyUse for a job that waits for a place; pods is small.
var standingSQL = `
with j as (
	select l.id, '' as why, null::timestamptz as run_after, l.lane, l.kind, l.subject, coalesce(l.key, '') as key, l.isolated from trapeze.live l where l.id = $1 and l.state = 'pending'
	union all
	select p.id, p.why, p.run_after, p.lane, p.kind, p.subject, coalesce(p.key, ''), p.isolated from trapeze.parked p where p.id = $1
)
select j.why, j.run_after, j.lane, j.kind, j.subject, j.key, j.isolated, ` + queueStateColumns + `,
	coalesce(n.enabled, false), coalesce(n.drained, false), coalesce(n.engine, 'postgres'), coalesce(n.next_engine, ''), p.served, n.slots, n.slots_per_pod, x.free_at, p.alive, p.known,
	coalesce(p.pods, '{}'), coalesce(p.slots, '{}'), c.job_id, coalesce(c.runs, false), c.retries_at, coalesce(f.open, 0), coalesce(f.branches, 0),
	k.lane_slots, coalesce(k.lane_window, 0), k.kind_slots, coalesce(k.in_lane, 0), coalesce(k.in_kind, 0)
from j
left join lateral trapeze.lane_rules(j.lane) n on true
cross join lateral (
	select count(*)::int as alive, coalesce(bool_or(n.engine = any(p.engines)), false) as served, (count(*) filter (where j.kind = any(p.kinds)))::int as known,
		array_agg(p.id::text) filter (where j.kind = any(p.kinds) and ` + readyPod + `) as pods,
		array_agg(p.slots) filter (where j.kind = any(p.kinds) and ` + readyPod + `) as slots
	from trapeze.pods p where p.closed_at is null and p.lease_until > now()
) p
left join lateral (
	select c.job_id, (select true from trapeze.live l where l.id = c.job_id and l.state = 'running' limit 1) as runs,
		(select p.run_after from trapeze.parked p where p.id = c.job_id limit 1) as retries_at from trapeze.subjects c
	where j.why = 'subject' and c.kind = j.kind and c.subject = j.subject and c.state = 'held' limit 1
) c on true
left join lateral (select * from (select greatest(x.held_until, x.next_start - (x.burst - 1) * (x.per / x.rate)) as free_at from trapeze.limits x
	where x.scope = 'lane' and x.name = j.lane and x.key = '') x where x.free_at > now()) x on true
left join trapeze.fan_outs f on j.why = 'children' and f.id = j.id
left join lateral (select u.* from (select j.key, j.lane, j.kind where j.why = 'key' offset 0) w cross join lateral (` + store.KeyUse + `) u) k on true`

// standing is one row returned by standingSQL.
type standing struct {
	Why          string // why the job is parked, or empty if it is due
	RunAfter     *time.Time
	Lane, Kind   string
	Subject, Key string
	Isolated     bool
	laneStanding
	podStanding
	Blocker        *int64 // the job that holds the guard of the subject
	BlockerRuns    bool
	BlockerUntil   *time.Time // when its retry is due, if it is ordered and waits for that
	Open, Branches int        // open and total branches of the job's fan-out
	keyStanding
}

// keyStanding is what limits the key of a job that waits for a place.
type keyStanding struct {
	LaneSlots  *int // limit of the key in the lane, or nil if there is none
	LaneWindow int  // number of the key's jobs in the lane that may be pending or running without a limit
	KindSlots  *int // limit of the key for the kind, or nil if there is none
	InLane     int  // number of the key's jobs that are pending or running in the lane
	InKind     int  // number of the key's jobs of the kind that are pending or running
}

// laneStanding holds the settings of a lane that can keep its jobs from running.
type laneStanding struct {
	Paused, Frozen, Enabled, Drained bool
	Engine, NextEngine               string
	Served                           bool // a live pod serves the engine
	Slots, SlotsPerPod               *int
	NextStart                        *time.Time // when the next start of the lane's rate is free, if that is later than now
}

// podStanding holds the pods that can run a job.
type podStanding struct {
	Alive, Known int      // number of live pods, and number of live pods with a handler
	PodIDs       []string // ids of the pods that could run the job now
	PodSlots     []int    // total slots of each of those pods
}

// Blockers returns the reasons why a waiting job is not running. Reasons that concern only this job come first, followed by those that it
// shares with other jobs. The result is empty if the job is running, has ended or does not exist. Blockers calls used only if it finds no
// other reason, because counting the slots in use is expensive. used returns the result of [SlotsInUse], possibly slightly out of date.
func Blockers(ctx context.Context, s *store.Store, id int64, used func(context.Context) ([]BoardSlots, error)) ([]job.Blocker, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[standing], standingSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read why job %d does not run: %w", id, err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	j := found[0]
	list := append(j.own(id), j.shared()...)
	if len(list) > 0 {
		return list, nil
	}
	slots, err := used(ctx)
	return j.turn(slots), text.Wrap(err, "read why job %d does not run", id)
}

// own returns the reasons that concern only this job.
func (j standing) own(id int64) (list []job.Blocker) {
	o := job.Blocker{Why: job.BlockerType(j.Why)}
	o.Says = o.Why.Words()
	switch o.Why {
	case job.BlockerScheduled, job.BlockerRetry, job.BlockerSnoozed:
		o.Until = j.RunAfter
	case job.BlockerApproval:
		o.Do = "trapeze approve " + strconv.FormatInt(id, 10)
	case job.BlockerSubject:
		if j.Blocker == nil {
			return []job.Blocker{{Why: o.Why, Says: fmt.Sprintf("the subject %q is free: the next poll admits the job", j.Subject)}}
		}
		says := "another %s is next for the subject %q"
		if j.BlockerRuns {
			says = "another %s is running for the subject %q"
		}
		o = job.Blocker{Why: o.Why, Says: fmt.Sprintf(says, j.Kind, j.Subject), JobID: j.Blocker, Until: j.BlockerUntil}
		if j.BlockerUntil != nil {
			o.Says = fmt.Sprintf("the %s before it is ordered and waits for its retry: cancel that job to free the subject %q", j.Kind, j.Subject)
		}
		return []job.Blocker{o}
	case job.BlockerKey:
		return []job.Blocker{{Why: o.Why, Says: j.place()}}
	case job.BlockerChildren:
		return []job.Blocker{{Why: o.Why, Says: fmt.Sprintf("%d of its %d children have not ended", j.Open, j.Branches), Do: fmt.Sprintf("trapeze pipeline %d", id)}}
	}
	if j.Why != "" {
		list = append(list, o)
	}
	return list
}

// place describes why the job has no place among the jobs of its key.
func (j standing) place() string {
	full := func(n int, of, in, most string) string {
		are := "are"
		if n == 1 {
			are = "is"
		}
		return fmt.Sprintf("%s of the key %q%s %s pending or running%s: %s", text.Count(n, "job", "jobs"), j.Key, of, are, in, most)
	}
	lane := " in the lane " + strconv.Quote(j.Lane)
	switch {
	case j.KindSlots != nil && j.InKind >= *j.KindSlots:
		return full(j.InKind, " and the kind "+strconv.Quote(j.Kind), "", fmt.Sprintf("the limit is %d", *j.KindSlots))
	case j.LaneSlots != nil && *j.LaneSlots <= j.LaneWindow && j.InLane >= *j.LaneSlots:
		return full(j.InLane, "", lane, fmt.Sprintf("the limit is %d", *j.LaneSlots))
	case j.InLane >= j.LaneWindow:
		return full(j.InLane, "", lane, fmt.Sprintf("the window, which leaves room for other keys, is %d", j.LaneWindow))
	}
	return fmt.Sprintf("the key %q has a free place%s: the next poll admits the job", j.Key, lane)
}

// shared returns the reasons that apply to every job in the same lane or of the same kind. It returns none for a job that is waiting for
// its branches, because such a job needs no slot.
func (j standing) shared() (list []job.Blocker) {
	if job.BlockerType(j.Why) == job.BlockerChildren {
		return nil
	}
	add := func(when bool, why job.BlockerType, says, do string) {
		if when {
			list = append(list, job.Blocker{Why: why, Says: says, Do: do})
		}
	}
	lane := strconv.Quote(j.Lane)
	add(j.Paused, job.BlockerPaused, "the queue is paused: no job starts", "trapeze resume")
	add(j.Frozen, job.BlockerFrozen, "the queue is frozen for maintenance", "trapeze unfreeze")
	add(!j.Enabled, job.BlockerDisabled, "its lane "+lane+" is disabled", "trapeze lane set "+text.ShellWord(j.Lane)+" enabled=true")
	add(j.Drained, job.BlockerDrained, "its lane "+lane+" is drained", "trapeze undrain "+text.ShellWord(j.Lane))
	add(j.NextEngine != "", job.BlockerMoving, "its lane "+lane+" is moving to the engine "+j.NextEngine, "trapeze lane set "+text.ShellWord(j.Lane)+" --engine "+text.ShellWord(j.NextEngine))
	add(j.Slots != nil && *j.Slots == 0, job.BlockerFullLane, "its lane "+lane+" has 0 slots", "trapeze lane set "+text.ShellWord(j.Lane)+" slots=4")
	add(j.SlotsPerPod != nil && *j.SlotsPerPod == 0, job.BlockerFullLane, "its lane "+lane+" has 0 slots per pod", "trapeze lane set "+text.ShellWord(j.Lane)+" slots_per_pod=2")
	if j.NextStart != nil {
		list = append(list, job.Blocker{Why: job.BlockerRate, Says: "its lane " + lane + " starts no more jobs until " + j.NextStart.UTC().Format(time.TimeOnly) + " UTC: its rate, or a hold by a handler", Until: j.NextStart})
	}
	if j.Engine != job.EnginePostgreSQL {
		add(!j.Served, job.BlockerNoEngine, "no live pod serves "+j.Engine+", the engine of its lane "+lane, "")
		return list
	}
	switch {
	case j.Alive == 0:
		add(true, job.BlockerNoPods, "no pod is alive", "trapeze serve")
	case j.Known == 0:
		add(true, job.BlockerNoHandler, fmt.Sprintf("no live pod has a handler of %q", j.Kind), "")
	case len(j.PodIDs) == 0:
		add(true, job.BlockerPodsDrained, fmt.Sprintf("the pods that have a handler of %q are drained or about to stop", j.Kind), "trapeze pods")
	}
	return list
}

// turn returns the reasons why a claimable job has not been claimed yet, usually that other jobs occupy the slots.
func (j standing) turn(used []BoardSlots) []job.Blocker {
	if j.Engine != job.EnginePostgreSQL {
		return []job.Blocker{{Why: job.BlockerDue, Says: "not blocked: the engine " + j.Engine + " takes it next, after more urgent jobs, or its lane's slots are in use"}}
	}
	lane, pods, here := 0, map[string]int{}, map[string]int{}
	for _, u := range used {
		pods[u.Pod] += u.Running
		if u.Lane == j.Lane {
			lane += u.Running
			here[u.Pod] += u.Running
		}
	}
	busy, full := 0, 0 // pods without any free slot, and other pods without a free slot for the lane
	for i, podID := range j.PodIDs {
		switch {
		case pods[podID] >= j.PodSlots[i]:
			busy++
		case j.SlotsPerPod != nil && here[podID] >= *j.SlotsPerPod:
			full++
		}
	}
	switch {
	case j.Slots != nil && lane >= *j.Slots:
		return []job.Blocker{{Why: job.BlockerFullLane, Says: fmt.Sprintf("all %d slots of its lane %q are in use", *j.Slots, j.Lane), Do: "trapeze ps"}}
	case full > 0 && busy+full == len(j.PodIDs):
		return []job.Blocker{{Why: job.BlockerFullLane, Says: fmt.Sprintf("all slots per pod of its lane %q are in use: %d each", j.Lane, *j.SlotsPerPod), Do: "trapeze ps"}}
	case busy == len(j.PodIDs):
		return []job.Blocker{{Why: job.BlockerFullPods, Says: "all slots of the pods that have a handler are in use", Do: "trapeze ps"}}
	case j.Isolated:
		return []job.Blocker{{Why: job.BlockerIsolated, Says: job.BlockerIsolated.Words()}}
	}
	return []job.Blocker{{Why: job.BlockerDue, Says: "not blocked: the next claim takes it, after more urgent jobs"}}
}
