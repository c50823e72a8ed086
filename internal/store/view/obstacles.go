package view

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/shell"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// standingSQL reads of one job that has not ended and does not run whatever its own row, its lane, the gate and the pods say about
// that. Plan: live_pkey, parked_pkey, current_runs_one_running and other primary keys; pods is small.
const standingSQL = `
with j as (
	select l.id, '' as why, null::timestamptz as run_after, l.lane, l.kind, l.subject, l.isolated from trapeze.live l where l.id = $1 and l.state = 'pending'
	union all
	select p.id, p.why, p.run_after, p.lane, p.kind, p.subject, p.isolated from trapeze.parked p where p.id = $1
)
select j.why, j.run_after, j.lane, j.kind, j.subject, j.isolated, coalesce(g.paused, false), coalesce(g.frozen, false),
	coalesce(n.enabled, false), coalesce(n.drained, false), n.slots, n.slots_per_pod, p.alive, p.known,
	coalesce(p.boots, '{}'), coalesce(p.slots, '{}'), c.job_id, coalesce(f.open, 0), coalesce(f.branches, 0)
from j
left join trapeze.gate g on true
left join trapeze.lanes n on n.name = j.lane
cross join lateral (
	select count(*)::int as alive, (count(*) filter (where j.kind = any(p.kinds)))::int as known,
		array_agg(p.boot::text) filter (where j.kind = any(p.kinds) and ` + alivePod + `) as boots,
		array_agg(p.slots) filter (where j.kind = any(p.kinds) and ` + alivePod + `) as slots
	from trapeze.pods p where p.closed_at is null and p.lease_until > now()
) p
left join lateral (
	select c.* from trapeze.current_runs c
	where j.why = '' and j.subject <> '' and c.kind = j.kind and c.subject = j.subject and c.state = 'running' limit 1
) c on true
left join trapeze.fan_outs f on j.why = 'children' and f.id = j.id`

// standing is what standingSQL reads.
type standing struct {
	Why                              string // why it is parked; empty: it is due
	RunAfter                         *time.Time
	Lane, Kind, Subject              string
	Isolated                         bool
	Paused, Frozen, Enabled, Drained bool
	Slots, SlotsPerPod               *int
	Alive, Known                     int      // pods, and those of them that have a handler
	Boots                            []string // of those that would take it
	PodSlots                         []int    // of each of them
	Blocker                          *int64
	Open, Branches                   int // of its fan-out
}

// Obstacles says why a job that waits does not run: what is its own first, then what keeps others waiting, too. It is empty for a job
// that runs, has ended or does not exist. What each lane uses of each pod is asked only where nothing else is in the way: used is
// [SlotsInUse], or an answer of it that is a moment old, for it is the expensive part.
func Obstacles(ctx context.Context, s *store.Store, id int64, used func(context.Context) ([]BoardSlots, error)) ([]job.Obstacle, error) {
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
	if err != nil {
		return nil, fmt.Errorf("read why job %d does not run: %w", id, err)
	}
	return j.turn(slots), nil
}

// own is what the job itself waits for.
func (j standing) own(id int64) (list []job.Obstacle) {
	o := job.Obstacle{Why: job.Hindrance(j.Why)}
	o.Says = o.Why.Words()
	switch o.Why {
	case job.HinderedScheduled, job.HinderedRetry, job.HinderedSnoozed:
		o.Until = j.RunAfter
	case job.HinderedApproval:
		o.Do = "trapeze approve " + strconv.FormatInt(id, 10)
	case job.HinderedBranches:
		return []job.Obstacle{{Why: o.Why, Says: fmt.Sprintf("%d of its %d branches have not ended", j.Open, j.Branches), Do: fmt.Sprintf("trapeze pipeline %d", id)}}
	}
	if j.Why != "" {
		list = append(list, o)
	}
	if j.Blocker != nil {
		list = append(list, job.Obstacle{Why: job.HinderedSubject, Says: fmt.Sprintf("another %s runs for the subject %q", j.Kind, j.Subject), JobID: j.Blocker})
	}
	return list
}

// shared is what keeps every job of its lane or kind from running. What waits for its branches is in nobody's way.
func (j standing) shared() (list []job.Obstacle) {
	if job.Hindrance(j.Why) == job.HinderedBranches {
		return nil
	}
	add := func(when bool, why job.Hindrance, says, do string) {
		if when {
			list = append(list, job.Obstacle{Why: why, Says: says, Do: do})
		}
	}
	lane := strconv.Quote(j.Lane)
	add(j.Paused, job.HinderedPaused, "everything is paused: nothing is claimed in any lane", "trapeze unpause")
	add(j.Frozen, job.HinderedFrozen, "everything is frozen for maintenance", "trapeze thaw")
	add(!j.Enabled, job.HinderedDisabled, "its lane "+lane+" is disabled", "trapeze lane set "+shell.Word(j.Lane)+" enabled=true")
	add(j.Drained, job.HinderedDrained, "its lane "+lane+" is drained", "trapeze resume "+shell.Word(j.Lane))
	add(j.Slots != nil && *j.Slots == 0, job.HinderedFullLane, "its lane "+lane+" has 0 slots", "trapeze lane set "+shell.Word(j.Lane)+" slots=4")
	add(j.SlotsPerPod != nil && *j.SlotsPerPod == 0, job.HinderedFullLane, "its lane "+lane+" has 0 slots a pod", "trapeze lane set "+shell.Word(j.Lane)+" slots_per_pod=2")
	switch {
	case j.Alive == 0:
		add(true, job.HinderedNoPods, "no pod is alive", "trapeze serve")
	case j.Known == 0:
		add(true, job.HinderedNoHandler, fmt.Sprintf("no live pod has a handler of %q", j.Kind), "")
	case len(j.Boots) == 0:
		add(true, job.HinderedPodsDrained, fmt.Sprintf("the pods that have a handler of %q are drained or about to stop", j.Kind), "trapeze pods")
	}
	return list
}

// turn is why a job is not claimed that could be: others have the slots.
func (j standing) turn(used []BoardSlots) []job.Obstacle {
	lane, pods, here := 0, map[string]int{}, map[string]int{}
	for _, u := range used {
		pods[u.Pod] += u.Running
		if u.Lane == j.Lane {
			lane += u.Running
			here[u.Pod] += u.Running
		}
	}
	busy, full := 0, 0 // pods whose slots are in use, or those that the lane may have there
	for i, boot := range j.Boots {
		switch {
		case pods[boot] >= j.PodSlots[i]:
			busy++
		case j.SlotsPerPod != nil && here[boot] >= *j.SlotsPerPod:
			full++
		}
	}
	switch {
	case j.Slots != nil && lane >= *j.Slots:
		return []job.Obstacle{{Why: job.HinderedFullLane, Says: fmt.Sprintf("all %d slots of its lane %q are in use", *j.Slots, j.Lane), Do: "trapeze ps"}}
	case full > 0 && busy+full == len(j.Boots):
		return []job.Obstacle{{Why: job.HinderedFullLane, Says: fmt.Sprintf("all slots that its lane %q may have of a pod are in use: %d each", j.Lane, *j.SlotsPerPod), Do: "trapeze ps"}}
	case busy == len(j.Boots):
		return []job.Obstacle{{Why: job.HinderedFullPods, Says: "all slots of the pods that have a handler are in use", Do: "trapeze ps"}}
	case j.Isolated:
		return []job.Obstacle{{Why: job.HinderedIsolated, Says: job.HinderedIsolated.Words()}}
	}
	return []job.Obstacle{{Why: job.HinderedDue, Says: "nothing is in its way: the next claim takes it, after what is more urgent"}}
}
