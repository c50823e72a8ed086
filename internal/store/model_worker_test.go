package store_test

import (
	"encoding/json"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Finish ends claims of a pod, each fenced separately, and inserts their next steps.
func (m *model) Finish(podID string, list []store.Ending) map[int64]store.Ended {
	ended := map[int64]store.Ended{}
	var (
		ends []store.Ending
		jobs []newJob
	)
	for _, e := range list {
		j := m.held(job.Lease{JobID: e.ID, Fence: e.Fence, Pod: podID})
		if j == nil {
			continue
		}
		ends = append(ends, e)
		if e.Next != nil && !j.cancel {
			w := newJob{NewJob: *e.Next, ahead: e.Next.Priority + 1} // only more urgent jobs go before the next step
			w.handed = w.Subject != "" && w.Kind == j.Kind && w.Subject == j.Subject
			jobs = append(jobs, w)
		}
	}
	at := m.places(podID, jobs)
	for _, e := range ends {
		j := m.jobs[e.ID]
		ended[e.ID] = store.Ended{State: m.finish(j, e), ChildRunning: e.Next != nil && at[e.Next.ID] == store.PlacedRunning}
	}
	for _, e := range ends {
		j := m.jobs[e.ID]
		if e.Next != nil && j.Kind == e.Next.Kind && j.Subject == e.Next.Subject && (at[e.Next.ID] == store.PlacedRunning || at[e.Next.ID] == store.PlacedPending) {
			continue // the next step takes over the guard
		}
		if first := m.firstWaiting(j.key()); j.Subject != "" && first != nil {
			m.runs[j.key()] = modelRun{first.ID, "held", j.ID}
			first.place, first.why = "live", ""
			end := ended[e.ID]
			end.Heir = &store.AdmittedJob{Kind: first.Kind, Lane: first.Lane, Priority: first.Priority}
			ended[e.ID] = end
		}
	}
	m.insert(podID, jobs, at)
	return ended
}

// finish ends one claim as its handler requests, unless a cancel request came first.
func (m *model) finish(j *modelJob, e store.Ending) job.State {
	event := eventOf(j.lease(), "job."+string(e.State))
	event.text = e.Error
	switch {
	case j.cancel:
		event.event = "job.cancelled"
		delete(m.cancels, j.lease())
		e.State, e.Outcome, e.Reason, e.Result, e.Class, e.Code = job.Cancelled, job.Error, job.ReasonCancelled, nil, "", ""
	case e.State == job.Failed:
		event.level, event.note = "error", e.Code
	case e.Outcome == job.Warning:
		event.level = "warn"
	}
	j.result, j.failure, j.class, j.code, j.finished = string(e.Result), e.Error, string(e.Class), e.Code, true
	m.end(j, e.State, e.Outcome, e.Reason, event)
	return e.State
}

// Park ends a claim and makes the job wait.
func (m *model) Park(l job.Lease, why string, millis int64, message string) error {
	j := m.held(l)
	if j == nil || j.cancel {
		return job.ErrLeaseLost
	}
	event := eventOf(l, "job.snoozed")
	event.actor, event.level, event.text = "handler", "warn", message
	if why == "retry" {
		event.event, event.note = "job.retried", number(j.attempt)
	} else {
		j.attempt--
		j.snoozes = int(l.Fence)
		event.note = number(j.snoozes)
	}
	if j.Ordered {
		m.runs[j.key()] = modelRun{j.ID, "held", j.ID}
	} else {
		m.rest(j)
	}
	m.move(j, job.Pending, event)
	j.place, j.why, j.pod, j.at = "parked", why, "", m.due(millis)
	j.writes = 0 // the row in live is deleted
	return nil
}

// HandBack returns claims without spending an attempt.
func (m *model) HandBack(podID string, claims []job.Lease, why string) map[int64]bool {
	back := map[int64]bool{}
	for _, l := range claims {
		l.Pod = podID
		j := m.held(l)
		if j == nil || j.cancel {
			continue
		}
		event := eventOf(l, "job.handed_back")
		event.text = why
		m.move(j, job.Pending, event)
		j.pod, j.attempt = "", j.attempt-1
		back[j.ID] = true
	}
	return back
}

// Progress records a claim's progress. Nil fields keep their values.
func (m *model) Progress(l job.Lease, p job.Progress) error {
	j := m.held(l)
	if j == nil {
		return job.ErrLeaseLost
	}
	if was := j.progress; was != nil {
		if p.Done == nil {
			p.Done = was.Done
		}
		if p.Total == nil {
			p.Total = was.Total
		}
		if p.Message == nil {
			p.Message = was.Message
		}
	}
	j.progress = &p
	return nil
}

// Checkpoint stores a checkpoint in a handler's transaction that has locked the lease.
func (m *model) Checkpoint(l job.Lease, checkpoint json.RawMessage) (number int, err error) {
	j := m.held(l)
	switch {
	case j == nil:
		return 0, job.ErrLeaseLost
	case j.cancel:
		return 0, job.ErrCancelled
	}
	j.writes++
	return j.writes, m.Keep(l, checkpoint)
}

// Keep stores a checkpoint for a handler that writes nothing else.
func (m *model) Keep(l job.Lease, checkpoint json.RawMessage) error {
	j := m.held(l)
	switch {
	case j == nil:
		return job.ErrLeaseLost
	case j.cancel:
		return job.ErrCancelled
	}
	j.checkpoint = string(checkpoint)
	if j.crashes > 0 {
		j.crashes, j.isolated = 0, false
	}
	return nil
}

// Emit appends the handler's events.
func (m *model) Emit(l job.Lease, list []store.Emission) error {
	j := m.held(l)
	if j == nil {
		return job.ErrLeaseLost
	}
	for _, one := range list {
		e := eventOf(l, one.Event)
		e.actor, e.level, e.text = "handler", one.Level, one.Message
		m.note(j, j.state, e)
	}
	return nil
}

// StaleResult records that a former owner's result was rejected, if the job has a newer claim.
func (m *model) StaleResult(l job.Lease, what string) {
	if j := m.jobs[l.JobID]; j != nil && j.live() && j.fence > l.Fence {
		e := eventOf(l, "job.stale_result")
		e.level, e.text = "warn", what
		m.note(j, j.state, e)
	}
}

// ClaimOutcome returns a claim's outcome.
func (m *model) ClaimOutcome(l job.Lease) store.ClaimOutcome {
	c := store.ClaimOutcome{ID: l.JobID, Fence: l.Fence}
	j := m.jobs[l.JobID]
	switch {
	case j == nil:
		c.Deleted = true
	case j.fence != l.Fence:
	case j.done():
		c.State, c.Reason, c.ByPod = &j.state, &j.reason, j.pod == l.Pod
		c.ByFinish = j.finished && c.ByPod
		if j.result != "" {
			c.Result = json.RawMessage(j.result)
		}
	case j.parked():
		c.Parked = true
	case j.pod == "":
		c.Pending = true
	case j.pod == l.Pod:
		c.Held = true
	}
	return c
}
