package store_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Cancel ends a job, or requests that its pod do so.
func (m *model) Cancel(id int64, stop bool, actor string) (admin.Cancellation, error) {
	j := m.jobs[id]
	if j == nil {
		if g, buried := m.graves[id]; buried {
			return admin.Cancellation{State: g.state, Fence: g.fence}, job.ErrAlreadyTerminal
		}
		return admin.Cancellation{}, job.ErrNotFound
	}
	if j.done() {
		return admin.Cancellation{State: j.state, Fence: j.fence}, job.ErrAlreadyTerminal
	}
	c := admin.Cancellation{State: job.Cancelled, Fence: j.fence}
	reason := job.ReasonCancelled
	if stop {
		reason = job.ReasonForceCancelled
	}
	event := eventOf(j.lease(), "job.cancelled")
	event.actor = actor
	if j.runs() {
		pod := j.pod
		c.Pod = &pod
		m.cancels[j.lease()] = reason
		if !stop {
			c.State = job.Running
			if !j.cancel {
				event.event, event.podID = "job.cancel_requested", ""
				j.cancel = true
				m.note(j, job.Running, event)
			}
			return c, nil
		}
	}
	m.end(j, job.Cancelled, job.Error, reason, event)
	c.Ended = j.ending()
	return c, nil
}

// ending returns the job.End that a statement is expected to report when it ends the job.
func (j *modelJob) ending() *job.End {
	pipeline := j.PipelineID
	if pipeline == 0 {
		pipeline = j.ID
	}
	return &job.End{ID: j.ID, PipelineID: pipeline, Kind: j.Kind, Lane: j.Lane, Subject: j.Subject, Attempt: j.attempt, State: j.state, Reason: j.reason,
		Error: j.failure, ErrorClass: job.ErrorClass(j.class)}
}

// Nice changes a waiting job's priority.
func (m *model) Nice(id int64, priority int, actor string) error {
	j := m.jobs[id]
	if _, buried := m.graves[id]; buried || j != nil && j.done() {
		return job.ErrAlreadyTerminal
	}
	if j == nil {
		return job.ErrNotFound
	}
	if j.runs() {
		return job.ErrNotQueued
	}
	j.Priority = priority
	m.note(j, j.state, modelEvent{event: "job.niced", actor: actor, fence: &[]int64{j.fence}[0]})
	return nil
}

// Retry starts the next epoch of a job that failed or was cancelled.
func (m *model) Retry(id int64, actor string) ([]int64, error) {
	j := m.jobs[id]
	if j == nil {
		return nil, job.ErrNotFound
	}
	if j.state != job.Failed && j.state != job.Cancelled {
		return nil, job.ErrNotFailed
	}
	if j.UniqueKey != nil {
		key := store.Line{Kind: j.Kind, Subject: *j.UniqueKey}
		if holder, held := m.keys[key]; held && holder != id {
			return nil, job.ErrKeyHeld
		}
		m.keys[key], j.uniqueWhile = id, "pending"
	}
	m.move(j, job.Pending, modelEvent{event: "job.operator_retry", actor: actor, fence: &[]int64{j.fence}[0]})
	j.place, j.why, j.at, j.retries, j.attempt, j.crashes, j.writes = "parked", "scheduled", m.now, j.retries+1, 0, 0, 0
	j.pod, j.outcome, j.reason, j.result, j.failure, j.old = "", "", "", "", "", false
	j.class, j.code, j.finished = "", "", false
	return []int64{id}, nil
}

// Register opens a pod's row.
func (m *model) Register(p store.PodInfo) {
	m.pods[p.PodID] = &modelPod{name: p.Name}
	m.podEvent(p.PodID, "pod.joined", "", p.Name)
}

// Leave closes a pod's row.
func (m *model) Leave(podID string) {
	if m.open(podID) {
		m.pods[podID].closed = true
		m.podEvent(podID, "pod.left", "", m.pods[podID].name)
	}
}

// CloseLapsed closes the rows of all other pods whose leases have expired.
func (m *model) CloseLapsed(by string) (podIDs []string) {
	for _, podID := range slices.Sorted(maps.Keys(m.pods)) {
		if p := m.pods[podID]; podID != by && !p.closed && p.lapsed {
			p.closed = true
			m.podEvent(podID, "pod.lapsed", "warn", p.name)
			podIDs = append(podIDs, podID)
		}
	}
	return podIDs
}

// RecoverPage recovers the jobs of closed pods.
func (m *model) RecoverPage(podIDs []string, after int64, limit, maxCrashes int) store.RecoveredPage {
	ranks := []store.AdmittedJob{}
	page := m.pick(func(j *modelJob) bool { return j.live() && j.ID > after })
	page = page[:min(limit, len(page))]
	r := store.RecoveredPage{Last: after, Seen: len(page), Ended: []job.End{}, Lines: []store.Line{}}
	for _, j := range page {
		r.Last = j.ID
		if !j.runs() || !slices.Contains(podIDs, j.pod) {
			continue
		}
		p := m.pods[j.pod]
		if p == nil || !p.closed {
			r.Passed++
			continue
		}
		limit := maxCrashes
		if j.MaxCrashes != nil {
			limit = *j.MaxCrashes
		}
		if k := (store.Line{Kind: j.Kind, Subject: j.Subject}); k.Subject != "" && !slices.Contains(r.Lines, k) {
			r.Lines = append(r.Lines, k)
		}
		j.crashes++
		event := eventOf(j.lease(), "job.recovered")
		event.level, event.note = "warn", number(j.crashes)
		if !j.cancel && j.crashes < limit {
			m.move(j, job.Pending, event)
			j.pod, j.attempt, j.at = "", j.attempt-1, 0
			j.isolated = j.crashes >= min(2, limit-1)
			r.Pending++
			if at := (store.AdmittedJob{Lane: j.Lane, Priority: j.Priority}); !slices.Contains(ranks, at) {
				ranks = append(ranks, at)
			}
			continue
		}
		to, reason := job.Failed, job.ReasonCrashed
		if j.cancel {
			to, reason = job.Cancelled, job.ReasonCancelled
		}
		event.event, event.level = "job."+string(to), "error"
		j.failure = "the pod " + p.name + " that ran it died or lost its lease"
		if !j.cancel {
			j.class = string(job.ClassCrashLimit)
		}
		m.end(j, to, job.Error, reason, event)
		r.Ended = append(r.Ended, *j.ending())
	}
	slices.SortFunc(r.Lines, func(a, b store.Line) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
	})
	slices.SortFunc(ranks, func(a, b store.AdmittedJob) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Priority, b.Priority))
	})
	r.Ranks = ranks
	return r
}

// modelBeat holds the heartbeat fields that the tests compare.
type modelBeat struct {
	Open, Paused, Due, Peers bool
	Lanes                    []store.Lane
	Cancels                  []store.CancelRequest
}

// Heartbeat renews a lease and returns the response to the pod.
func (m *model) Heartbeat(podID string, draining bool) modelBeat {
	b := modelBeat{Open: m.open(podID), Paused: m.paused}
	b.Due = len(m.pick(func(j *modelJob) bool { return j.parked() && j.why != "subject" })) > 0
	for other, p := range m.pods {
		b.Peers = b.Peers || other != podID && !p.closed
	}
	for l, reason := range m.cancels {
		if l.Pod == podID {
			b.Cancels = append(b.Cancels, store.CancelRequest{l.JobID, l.Fence, reason})
		}
	}
	b.Lanes = slices.Collect(maps.Values(m.lanes))
	b.sort()
	if b.Open {
		m.pods[podID].lapsed, m.pods[podID].draining = false, draining
	}
	return b
}

func (b *modelBeat) sort() {
	slices.SortFunc(b.Lanes, func(x, y store.Lane) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(b.Cancels, func(x, y store.CancelRequest) int {
		return cmp.Or(cmp.Compare(x.JobID, y.JobID), cmp.Compare(x.Fence, y.Fence))
	})
}

// Promote makes due parked jobs pending. A job whose subject is taken, or for which a job that comes first waits, stays parked.
func (m *model) Promote(limit int) (p promoted) {
	due := m.pick(func(j *modelJob) bool { return j.parked() && j.why != "subject" && j.at <= m.now })
	slices.SortFunc(due, func(a, b *modelJob) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.ID, b.ID)) })
	due = due[:min(limit, len(due))]
	best := map[store.Line]*modelJob{}
	for _, j := range due {
		k := j.key()
		next := m.waitingFor(k)
		if m.holds(j) || j.Subject != "" && !m.busy(k) && (len(next) == 0 || urgency(j, next[0]) < 0) && (best[k] == nil || urgency(j, best[k]) < 0) {
			best[k] = j
		}
	}
	for _, j := range due {
		m.move(j, job.Pending, modelEvent{event: "job.promoted", fence: &[]int64{j.fence}[0]})
		if j.Subject != "" && best[j.key()] != j {
			j.why = "subject"
			p.Waiting = append(p.Waiting, j.key())
			continue
		}
		if !m.holds(j) {
			m.guard(j)
		}
		j.place, j.why = "live", ""
	}
	sortKeys(p.Waiting)
	p.N = len(due)
	return p
}

// Forget deletes the jobs that ended in the given state on a past day, except those whose results may still be read. If there are no such
// exceptions, drops is true, and the jobs' rows in done remain until dropDay. Otherwise, those rows are removed immediately.
func (m *model) Forget(state job.State) (n int, drops bool) {
	awaited := map[int64]bool{}
	for _, j := range m.jobs {
		if j.done() || j.ParentID == nil {
			continue
		}
		if parent := m.jobs[*j.ParentID]; parent != nil && parent.old && parent.state == state {
			awaited[parent.ID] = true
		}
	}
	drops = len(awaited) == 0
	for _, j := range m.pick(func(j *modelJob) bool { return j.old && j.state == state && !awaited[j.ID] }) {
		if r := m.runs[j.key()]; j.Subject != "" && r.job == j.ID && r.state == "free" {
			delete(m.runs, j.key())
		}
		delete(m.jobs, j.ID)
		if drops {
			m.graves[j.ID] = grave{j.state, j.fence}
		}
		n++
	}
	return n, drops
}

func (m *model) dropDay(state job.State) {
	maps.DeleteFunc(m.graves, func(_ int64, g grave) bool { return g.state == state })
}

// ForgetEvents drops the history of past days.
func (m *model) ForgetEvents() {
	m.events = slices.DeleteFunc(m.events, func(e modelEvent) bool { return e.old })
}

// PrunePods deletes the rows of closed pods that have been swept.
func (m *model) PrunePods() int {
	before := len(m.pods)
	maps.DeleteFunc(m.pods, func(_ string, p *modelPod) bool { return p.closed && p.swept })
	return before - len(m.pods)
}

func number(n int) string { return strconv.Itoa(n) }

func bootOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
