package store_test

import (
	"cmp"
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

// EnqueueUnique submits a job with a unique key, and returns the job that holds the key.
func (m *model) EnqueueUnique(n store.NewJob) (holder int64) {
	key := store.Key{n.Kind, *n.UniqueKey}
	if held, taken := m.keys[key]; taken {
		return held
	}
	m.keys[key] = n.ID
	n.Starts = false
	m.Enqueue("", []store.NewJob{n})
	return n.ID
}

// places returns where each new job is inserted, based on the existing jobs. If several new jobs have the same subject, only one runs.
func (m *model) places(podID string, list []newJob) map[int64]store.Place {
	at := map[int64]store.Place{}
	free := make([]newJob, 0, len(list))
	for _, w := range list {
		first := len(m.pick(func(j *modelJob) bool { return j.waits() && j.Lane == w.Lane && j.Priority >= w.ahead })) == 0
		switch {
		case w.DelayMillis > 0:
			at[w.ID] = store.PlacedParked
		case w.Starts && m.open(podID) && first && (w.handed || !m.busy(store.Key{w.Kind, w.Subject})):
			free = append(free, w)
		default:
			at[w.ID] = store.PlacedPending
		}
	}
	slices.SortFunc(free, func(a, b newJob) int { return cmp.Compare(a.ID, b.ID) })
	taken := map[store.Key]bool{}
	for _, w := range free {
		k := store.Key{w.Kind, w.Subject}
		at[w.ID] = store.PlacedRunning
		if w.Subject != "" && !w.handed && taken[k] {
			at[w.ID] = store.PlacedPending
		}
		taken[k] = true
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
		case store.PlacedRunning:
			m.start(j, podID, "fast")
		}
	}
	return at
}

// due returns the time at which a delay ends. In these tests, a delay is either zero or longer than any test.
func (m *model) due(millis int64) int64 { return m.now + millis<<32 }

// start claims a pending job for a pod.
func (m *model) start(j *modelJob, podID, path string) {
	j.fence, j.attempt, j.pod, j.started = j.fence+1, j.attempt+1, podID, true
	m.run(j)
	m.move(j, job.Running, modelEvent{event: "job.claimed", podID: podID, fence: &[]int64{j.fence}[0], note: path})
	if j.uniqueWhile == "pending" {
		delete(m.keys, store.Key{j.Kind, *j.UniqueKey})
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

type modelClaims struct {
	Jobs []modelClaim
	Seen int
}

// Claim claims the most urgent jobs of each lane.
func (m *model) Claim(podID string, wants []store.Want, kinds []string, isolated bool) modelClaims {
	var picked []*modelJob
	for _, w := range wants {
		found := m.pick(func(j *modelJob) bool {
			return j.waits() && j.Lane == w.Lane && slices.Contains(kinds, j.Kind) && (isolated || !j.isolated) && !m.busy(j.key())
		})
		slices.SortFunc(found, urgency)
		picked = append(picked, found[:min(w.N, len(found))]...)
	}
	return m.take(podID, picked)
}

// ClaimSubjects claims the most urgent job of each subject.
func (m *model) ClaimSubjects(podID string, keys []store.Key, lanes []string) modelClaims {
	var picked []*modelJob
	for _, k := range keys {
		found := m.pick(func(j *modelJob) bool {
			return j.waits() && j.key() == k && slices.Contains(lanes, j.Lane) && !j.isolated && !m.busy(k)
		})
		if len(found) > 0 {
			picked = append(picked, slices.MinFunc(found, urgency))
		}
	}
	return m.take(podID, picked)
}

// take claims the picked jobs for a pod, but only one job per subject and only one isolated job.
func (m *model) take(podID string, picked []*modelJob) modelClaims {
	if !m.open(podID) {
		return modelClaims{}
	}
	first := int64(0) // the first isolated job
	for _, j := range picked {
		if j.isolated && (first == 0 || j.ID < first) {
			first = j.ID
		}
	}
	claims := modelClaims{Seen: len(picked)}
	slices.SortFunc(picked, urgency)
	for _, j := range picked {
		if j.isolated && j.ID != first || m.busy(j.key()) {
			continue
		}
		m.start(j, podID, "")
		claims.Jobs = append(claims.Jobs, modelClaim{ID: j.ID, Fence: j.fence, Attempt: j.attempt, Crashes: j.crashes,
			Priority: j.Priority, Step: j.Step, Isolated: j.isolated, Kind: j.Kind, Lane: j.Lane, Subject: j.Subject,
			Checkpoint: j.checkpoint, Snoozes: j.snoozes})
	}
	slices.SortFunc(claims.Jobs, func(a, b modelClaim) int { return cmp.Compare(a.ID, b.ID) })
	return claims
}
