package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func (b *bench) drawEnding(t *rapid.T, l job.Lease) store.Ending {
	e := store.Ending{ID: l.JobID, Fence: l.Fence, State: job.Succeeded, Outcome: draw(t, "outcome", job.OK, job.Warning), Reason: job.ReasonOK}
	if seldom(t, "with result", 2) {
		e.Result = json.RawMessage(fmt.Sprintf(`{"fence": %d}`, l.Fence))
	}
	return e
}

// drawFinish ends several claims of one pod in one statement.
func (b *bench) drawFinish(t *rapid.T) []operation {
	leases := b.drawLeases(t, 3)
	var ends []store.Ending
	for _, l := range leases {
		ends = append(ends, b.drawEnding(t, l))
	}
	return []operation{finishes(leases[0].Pod, ends...)}
}

// drawChain ends one or two claims of a pod, each with a next step.
func (b *bench) drawChain(t *rapid.T) []operation {
	leases := b.drawLeases(t, 2)
	var ends []store.Ending
	for _, l := range leases {
		e := b.drawEnding(t, l)
		parent := b.m.jobs[l.JobID]
		if parent == nil {
			continue // the job was deleted or never existed
		}
		child := b.drawJobs(t, 1, func(n *store.NewJob) {
			n.ParentID, n.PipelineID, n.Step = &parent.ID, parent.PipelineID, parent.Step+1
			n.Starts = !seldom(t, "does not start", 4)
			if !seldom(t, "other subject", 3) {
				n.Kind, n.Subject = parent.Kind, parent.Subject
			}
		})[0]
		e.Next = &child
		ends = append(ends, e)
	}
	return []operation{finishes(leases[0].Pod, ends...)}
}

func (b *bench) drawFail(t *rapid.T) []operation {
	l := b.drawLease(t)
	return []operation{finishes(l.Pod, store.Ending{ID: l.JobID, Fence: l.Fence, State: job.Failed, Outcome: job.Error, Error: "boom",
		Reason: draw(t, "reason", job.ReasonError, job.ReasonAttemptsExhausted, job.ReasonTimeout),
		Class:  draw(t, "class", job.ClassError, job.ClassPanic), Code: draw(t, "code", "", "23505", "card_declined")})}
}

func (b *bench) drawPark(t *rapid.T) []operation {
	return []operation{parks(b.drawLease(t), draw(t, "why", "retry", "snooze"), draw(t, "wait", int64(0), 3_600_000))}
}

func (b *bench) drawHandBack(t *rapid.T) []operation {
	leases := b.drawLeases(t, 5)
	return []operation{handsBack(leases[0].Pod, leases...)}
}

func (b *bench) drawProgress(t *rapid.T) []operation {
	p := job.Progress{Done: draw(t, "done", nil, ptr(int64(1)), ptr(int64(2))), Total: draw(t, "total", nil, ptr(int64(9))),
		Message: draw(t, "message", nil, ptr("half"))}
	return []operation{progresses(b.drawLease(t), p)}
}

func (b *bench) drawEmit(t *rapid.T) []operation {
	return []operation{emits(b.drawLease(t), 1+evenly(t, "events", 3))}
}

func (b *bench) drawCheckpoint(t *rapid.T) []operation {
	l, checkpoint := b.drawLease(t), json.RawMessage(fmt.Sprintf(`{"line": %d}`, evenly(t, "line", 9)))
	return []operation{draw(t, "with writes", checkpoints, keeps)(l, checkpoint)}
}

// drawStale makes a former owner try every operation that writes. Each must be rejected without changing anything.
func (b *bench) drawStale(t *rapid.T) []operation {
	var lost, outlived []job.Lease // outlived holds the lost leases whose job still exists and has a newer claim
	for _, l := range b.given {
		if b.m.held(l) == nil {
			lost = append(lost, l)
			if j := b.m.jobs[l.JobID]; j != nil && j.live() && j.fence > l.Fence {
				outlived = append(outlived, l)
			}
		}
	}
	if len(outlived) > 0 {
		lost = outlived
	}
	if len(lost) == 0 {
		return nil
	}
	l := draw(t, "lost lease", lost...)
	child := b.job()
	child.ParentID = &l.JobID
	return []operation{
		harmless(finishes(l.Pod, store.Ending{ID: l.JobID, Fence: l.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Next: &child})),
		harmless(finishes(l.Pod, store.Ending{ID: l.JobID, Fence: l.Fence, State: job.Failed, Outcome: job.Error, Reason: job.ReasonError, Error: "late"})),
		harmless(parks(l, "retry", 0)), harmless(parks(l, "snooze", 0)), harmless(handsBack(l.Pod, l)),
		harmless(progresses(l, job.Progress{Done: ptr(int64(1))})), harmless(emits(l, 2)),
		harmless(checkpoints(l, json.RawMessage(`{"line": 99}`))), harmless(keeps(l, json.RawMessage(`{"line": 98}`))), harmless(readsBack(l)),
		notesStale(l), // the only write that a former owner may make, if the job has a newer claim
	}
}

// harmless wraps an operation that must not change anything.
func harmless(v operation) operation {
	apply := v.stages[0]
	v.stages = []func(*model) (any, error){func(m *model) (any, error) {
		before := m.table()
		value, err := apply(m)
		if d := differs(m.table(), before); d != "" {
			panic(v.name + " by a former owner changed something:" + d)
		}
		return value, err
	}}
	return v
}

func (b *bench) drawBeat(t *rapid.T) []operation {
	podID := b.drawPod(t)
	b.beats[podID] = slices.Collect(maps.Values(b.m.lanes))
	return []operation{beats(podID, seldom(t, "draining", 3))}
}

func (b *bench) drawLapse(t *rapid.T) (list []operation) {
	for _, podID := range drawSome(t, "lapses", 2, b.openPods()) {
		list = append(list, lapses(podID))
	}
	return list
}

func (b *bench) drawRecover(t *rapid.T) []operation {
	podIDs := b.openPods()
	if len(podIDs) == 0 {
		return nil
	}
	return b.sweep(draw(t, "by", podIDs...), draw(t, "page", 1000, 1, 3), draw(t, "max crashes", 3, 1, 2))
}

func (b *bench) drawLeave(t *rapid.T) []operation { return []operation{leaves(b.drawPod(t))} }

func (b *bench) drawLane(t *rapid.T) []operation {
	return []operation{changesLane(store.Lane{
		Name:        draw(t, "lane", "default", "side"),
		SlotsPerPod: draw(t, "slots", nil, ptr(0), ptr(1), ptr(3)),
		Enabled:     draw(t, "enabled", true, true, false),
		Drained:     draw(t, "drained", false, false, true),
	})}
}

func (b *bench) drawPause(t *rapid.T) []operation { return []operation{pauses(seldom(t, "paused", 2))} }
