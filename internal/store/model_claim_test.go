package store_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// newJob is a new job together with the data that determines where it is inserted.
type newJob struct {
	store.NewJob
	handed bool // the job takes over its parent's subject
	ahead  int  // waiting jobs in the lane with this priority or a higher one go first
}

// Enqueue inserts each job where the store is expected to insert it. Jobs of the same or a higher priority that are already waiting in its
// lane go first.
func (m *model) Enqueue(podID string, list []store.NewJob) map[int64]store.Place {
	jobs := make([]newJob, len(list))
	for i, n := range list {
		jobs[i] = newJob{NewJob: n, ahead: n.Priority}
	}
	return m.insert(podID, jobs, m.places(podID, jobs))
}

// EnqueueIn is Enqueue in a transaction of the host, which takes no guards: jobs with a subject are parked as due.
func (m *model) EnqueueIn(list []store.NewJob) map[int64]store.Place {
	jobs, at := make([]newJob, len(list)), map[int64]store.Place{}
	for i, n := range list {
		jobs[i] = newJob{NewJob: n}
		at[n.ID] = store.PlacedPending
		if n.DelayMillis > 0 || n.Subject != "" {
			at[n.ID] = store.PlacedParked
		}
	}
	return m.insert("", jobs, at)
}

// EnqueueUnique submits a job with a unique key, and returns the job that holds the key.
func (m *model) EnqueueUnique(n store.NewJob) (holder int64) {
	key := store.Line{Kind: n.Kind, Subject: *n.UniqueKey}
	if held, taken := m.keys[key]; taken {
		return held
	}
	m.keys[key] = n.ID
	m.EnqueueIn([]store.NewJob{n})
	return n.ID
}

// places returns where each new job is inserted, based on the existing jobs. If several new jobs have the same subject, the most urgent one
// gets the guard, unless the subject is taken or a waiting job comes first.
func (m *model) places(podID string, list []newJob) map[int64]store.Place {
	at := map[int64]store.Place{}
	best := map[store.Line]newJob{} // the job that gets the guard
	free := func(w newJob) bool {
		k := store.Line{Kind: w.Kind, Subject: w.Subject}
		next := m.waitingFor(k)
		return w.DelayMillis == 0 && (w.Subject == "" || (w.handed || !m.busy(k)) && (len(next) == 0 || next[0].Priority < w.ahead) &&
			!m.duePrecedes(k, func(d *modelJob) bool { return d.Priority >= w.ahead }))
	}
	for _, w := range list {
		k := store.Line{Kind: w.Kind, Subject: w.Subject}
		if b, taken := best[k]; free(w) && !w.handed && (!taken || cmp.Or(cmp.Compare(b.Priority, w.Priority), cmp.Compare(w.ID, b.ID)) < 0) {
			best[k] = w
		}
	}
	for _, w := range list {
		first := len(m.pick(func(j *modelJob) bool { return j.waits() && j.Lane == w.Lane && j.Priority >= w.ahead })) == 0
		switch {
		case w.DelayMillis > 0:
			at[w.ID] = store.PlacedParked
		case !free(w) || w.Subject != "" && !w.handed && best[store.Line{Kind: w.Kind, Subject: w.Subject}].ID != w.ID:
			at[w.ID] = store.PlacedWaiting
		case w.Starts && m.open(podID) && first:
			at[w.ID] = store.PlacedRunning
		default:
			at[w.ID] = store.PlacedPending
		}
	}
	return at
}

// insert inserts new jobs in their places.
func (m *model) insert(podID string, list []newJob, at map[int64]store.Place) map[int64]store.Place {
	for _, w := range list {
		j := &modelJob{NewJob: w.NewJob, place: "live", at: m.now}
		if j.PipelineID == 0 {
			j.PipelineID = j.ID
		}
		if w.UniqueWhile != nil {
			j.uniqueWhile = *w.UniqueWhile
		}
		m.jobs[j.ID] = j
		m.move(j, job.Pending, modelEvent{event: "job.enqueued", actor: w.Actor})
		switch at[w.ID] {
		case store.PlacedParked:
			j.place, j.why, j.at = "parked", "scheduled", m.due(w.DelayMillis)
		case store.PlacedWaiting:
			j.place, j.why = "parked", "subject"
		case store.PlacedRunning:
			m.guard(j)
			m.start(j, podID, "fast")
		default:
			m.guard(j)
		}
	}
	return at
}

// due returns the time at which a delay ends. In these tests, a delay is either zero or longer than any test.
func (m *model) due(millis int64) int64 { return m.now + millis<<32 }

// start claims a pending job for a pod. It panics if the job overtakes an ordered one of its subject that has started and not ended.
func (m *model) start(j *modelJob, podID, path string) {
	if list := m.pick(func(o *modelJob) bool { return o.Ordered && o.begun && o != j && o.key() == j.key() }); len(list) > 0 {
		panic(fmt.Sprintf("job %d overtakes job %d", j.ID, list[0].ID))
	}
	j.fence, j.attempt, j.pod, j.started, j.begun, j.claimedAt = j.fence+1, j.attempt+1, podID, true, true, m.now
	m.move(j, job.Running, modelEvent{event: "job.claimed", podID: podID, fence: &[]int64{j.fence}[0], note: path})
	if j.uniqueWhile == "pending" {
		delete(m.keys, store.Line{Kind: j.Kind, Subject: *j.UniqueKey})
		j.uniqueWhile = ""
	}
}

// modelClaim holds the claim fields that the tests compare.
type modelClaim struct {
	ID, Fence                        int64
	Attempt, Crashes, Priority, Step int
	Isolated                         bool
	Kind, Lane, Subject, Checkpoint  string
	Snoozes                          int
}

// Claim claims the most urgent jobs of each lane, of which at most one is isolated.
func (m *model) Claim(podID string, wants []store.Want, kinds []string, isolated bool) (claims []modelClaim) {
	if !m.open(podID) {
		return nil
	}
	one := false // an isolated job has been claimed
	for _, w := range wants {
		found := m.pick(func(j *modelJob) bool {
			return j.waits() && j.Lane == w.Lane && slices.Contains(kinds, j.Kind) && (isolated || !j.isolated)
		})
		slices.SortFunc(found, urgency)
		for _, j := range found[:min(w.N, len(found))] {
			if j.isolated && one {
				continue
			}
			one = one || j.isolated
			m.start(j, podID, "")
			claims = append(claims, modelClaim{ID: j.ID, Fence: j.fence, Attempt: j.attempt, Crashes: j.crashes,
				Priority: j.Priority, Step: j.Step, Isolated: j.isolated, Kind: j.Kind, Lane: j.Lane, Subject: j.Subject,
				Checkpoint: j.checkpoint, Snoozes: j.snoozes})
		}
	}
	slices.SortFunc(claims, func(a, b modelClaim) int { return cmp.Compare(a.ID, b.ID) })
	return claims
}

// Yield parks the pending jobs that hold the guard of a subject although another of its jobs should run first.
func (m *model) Yield(keys []store.Line) (n int) {
	for _, k := range keys {
		j := m.jobs[m.runs[k].job]
		if !m.busy(k) || !j.waits() || j.Ordered && j.fence > 0 {
			continue
		}
		if !slices.ContainsFunc(m.waitingFor(k), func(p *modelJob) bool {
			return m.laneOpen(p) && (!m.laneOpen(j) || p.Priority > j.Priority)
		}) {
			continue
		}
		if m.release(j); j.at == 0 {
			j.at = j.claimedAt
		}
		j.place, j.why, j.writes = "parked", "subject", 0
		n++
	}
	return n
}

// duePrecedes reports whether a due job of a subject that precedes others has not been promoted yet.
func (m *model) duePrecedes(k store.Line, precedes func(d *modelJob) bool) bool {
	return len(m.pick(func(j *modelJob) bool {
		return j.parked() && j.why != "subject" && j.at <= m.now && j.key() == k && precedes(j)
	})) > 0
}

// firstWaiting returns the first job that waits for a subject: those in open lanes come first. It returns nil if a due job must be promoted before.
func (m *model) firstWaiting(k store.Line) *modelJob {
	list := m.waitingFor(k)
	if open := slices.DeleteFunc(slices.Clone(list), func(j *modelJob) bool { return !m.laneOpen(j) }); len(open) > 0 {
		list = open
	}
	if len(list) == 0 || m.duePrecedes(k, func(d *modelJob) bool { return urgency(d, list[0]) < 0 }) {
		return nil
	}
	return list[0]
}

// Admit makes the first waiting job of each free subject pending. Jobs in open lanes come first. It returns the lanes of the admitted jobs.
func (m *model) Admit(keys []store.Line) (lanes []string) {
	for _, k := range keys {
		j := m.firstWaiting(k)
		if m.busy(k) || j == nil {
			continue
		}
		m.guard(j)
		j.place, j.why = "live", ""
		lanes = append(lanes, j.Lane)
	}
	slices.Sort(lanes)
	return lanes
}

// waitingKeys returns all subjects for which a job waits.
func (m *model) waitingKeys() (keys []store.Line) {
	for _, j := range m.pick(func(j *modelJob) bool { return j.parked() && j.why == "subject" }) {
		if !slices.Contains(keys, j.key()) {
			keys = append(keys, j.key())
		}
	}
	return keys
}
