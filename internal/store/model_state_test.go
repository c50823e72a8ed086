package store_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// model implements the store with plain maps. It defines the effect of each operation on a database that has no other users. It does not
// model statements, locks or snapshots, and it records the order of events instead of their times. Its methods have the same names as the
// store's methods, and are not safe for concurrent use.
type model struct {
	now     int64 // the clock, which advances by one tick per operation
	jobs    map[int64]*modelJob
	runs    map[store.Line]modelRun  // as in the subjects table
	keys    map[store.Line]int64     // as in the unique_keys table, by kind and key
	cancels map[job.Lease]job.Reason // as in the cancel_requests table
	pods    map[string]*modelPod
	lanes   map[string]store.Lane
	paused  bool
	events  []modelEvent
	graves  map[int64]grave // rows of done whose jobs were deleted and whose days have not been dropped yet
}

// modelJob is a job in live, parked or done.
type modelJob struct {
	store.NewJob
	place                       string
	state                       job.State
	why                         string // why the job is parked
	at                          int64  // in live, when the job became ready; in parked, when it becomes or became due
	claimedAt                   int64  // when the job was last claimed
	fence                       int64
	pod                         string
	eventNo, attempt, crashes   int
	retries                     int // number of retries by operators; the epoch is one higher
	writes                      int
	cancel, isolated, started   bool
	begun                       bool // it has started, and has not ended since
	uniqueWhile                 string
	outcome                     job.OutcomeStatus
	reason                      job.Reason
	result, failure, checkpoint string
	class, code                 string
	finished                    bool // ended by its own pod, not by a command or recovery
	snoozes                     int  // number of snoozes
	progress                    *job.Progress
	old                         bool // the job ended on a day that retention may drop
}

// modelRun is the guard of a subject while its state is running, and the subject's latest run after that.
type modelRun struct {
	job      int64
	state    string
	previous int64 // the latest run until the guard's holder starts, or 0
}

type grave struct {
	state job.State
	fence int64
}

type modelPod struct {
	name                            string
	draining, lapsed, closed, swept bool
}

// modelEvent is an event of a job, or of a pod if job is 0. note is the most important number or word from the event's fields.
type modelEvent struct {
	job                                    int64
	no                                     int
	from, to                               job.State
	event, podID, actor, level, text, note string
	fence                                  *int64
	old                                    bool
}

func newModel() *model {
	return &model{
		jobs: map[int64]*modelJob{}, runs: map[store.Line]modelRun{}, keys: map[store.Line]int64{}, cancels: map[job.Lease]job.Reason{},
		pods: map[string]*modelPod{}, graves: map[int64]grave{},
		lanes: map[string]store.Lane{"default": {Name: "default", Enabled: true}, "side": {Name: "side", Enabled: true}},
	}
}

// clone returns a copy that shares no mutable state with m.
func (m *model) clone() *model {
	c := *m
	c.jobs, c.pods = map[int64]*modelJob{}, map[string]*modelPod{}
	for id, j := range m.jobs {
		copied := *j
		c.jobs[id] = &copied
	}
	for podID, p := range m.pods {
		copied := *p
		c.pods[podID] = &copied
	}
	c.runs, c.keys, c.cancels = maps.Clone(m.runs), maps.Clone(m.keys), maps.Clone(m.cancels)
	c.lanes, c.graves, c.events = maps.Clone(m.lanes), maps.Clone(m.graves), slices.Clone(m.events)
	return &c
}

// pick returns the jobs that satisfy the given condition, ordered by id.
func (m *model) pick(is func(*modelJob) bool) []*modelJob {
	var list []*modelJob
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
		if is(m.jobs[id]) {
			list = append(list, m.jobs[id])
		}
	}
	return list
}

func (j *modelJob) live() bool       { return j.place == "live" }
func (j *modelJob) waits() bool      { return j.place == "live" && j.state == job.Pending }
func (j *modelJob) runs() bool       { return j.place == "live" && j.state == job.Running }
func (j *modelJob) parked() bool     { return j.place == "parked" }
func (j *modelJob) done() bool       { return j.place == "done" }
func (j *modelJob) key() store.Line  { return store.Line{Kind: j.Kind, Subject: j.Subject} }
func (j *modelJob) lease() job.Lease { return job.Lease{JobID: j.ID, Fence: j.fence, Pod: j.pod} }

// urgency orders two jobs of a lane as claims do.
func urgency(a, b *modelJob) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.at, b.at), cmp.Compare(a.ID, b.ID))
}

// held returns the job to which a lease belongs, or nil if the lease was lost.
func (m *model) held(l job.Lease) *modelJob {
	if j := m.jobs[l.JobID]; j != nil && j.runs() && j.fence == l.Fence && j.pod == l.Pod {
		return j
	}
	return nil
}

// open reports whether a pod has a row that is not closed.
func (m *model) open(podID string) bool { p := m.pods[podID]; return p != nil && !p.closed }

// busy reports whether a job holds the guard of this kind and subject.
func (m *model) busy(k store.Line) bool { return k.Subject != "" && m.runs[k].state == "held" }

// waitingFor returns the parked jobs that wait for a subject, the most urgent first.
func (m *model) waitingFor(k store.Line) []*modelJob {
	list := m.pick(func(j *modelJob) bool { return j.parked() && j.why == "subject" && j.key() == k })
	slices.SortFunc(list, urgency)
	return list
}

// laneOpen reports whether a job's lane is open.
func (m *model) laneOpen(j *modelJob) bool { l := m.lanes[j.Lane]; return l.Enabled && !l.Drained }

// current returns the latest run of a subject, or 0.
func (m *model) current(k store.Line) int64 {
	r := m.runs[k]
	if j := m.jobs[r.job]; r.state == "held" && !(j != nil && j.runs()) {
		return r.previous
	}
	return r.job
}

// move changes a job's state and records an event. It panics on a transition that job/state.go does not allow: the model is then wrong, and
// so is a store that agrees with it.
func (m *model) move(j *modelJob, to job.State, e modelEvent) {
	if !job.CanMove(j.state, to) {
		panic(fmt.Sprintf("job %d: %s moves it from %q to %q", j.ID, e.event, j.state, to))
	}
	m.note(j, to, e)
}

// note records an event for a job.
func (m *model) note(j *modelJob, to job.State, e modelEvent) {
	j.eventNo++
	e.job, e.no, e.from, e.to = j.ID, j.eventNo, j.state, to
	if e.actor == "" {
		e.actor = "system"
	}
	m.events = append(m.events, e)
	j.state = to
}

// of returns an event for a claim.
func eventOf(l job.Lease, event string) modelEvent {
	return modelEvent{event: event, podID: l.Pod, fence: &l.Fence}
}

func (m *model) podEvent(podID, event, level, text string) {
	m.events = append(m.events, modelEvent{event: event, podID: podID, level: level, text: text, actor: "system"})
}

// guard gives a subject's guard to a job that becomes pending.
func (m *model) guard(j *modelJob) {
	if j.Subject != "" {
		m.runs[j.key()] = modelRun{j.ID, "held", m.runs[j.key()].job}
	}
}

// rest frees the subject of a job that is no longer running. The row still points to the latest run.
func (m *model) rest(j *modelJob) {
	if r := m.runs[j.key()]; j.Subject != "" && r.job == j.ID {
		r.state = "free"
		m.runs[j.key()] = r
	}
}

// release gives back the guard of a pending job. The run before it is the latest one again, if that job still exists.
func (m *model) release(j *modelJob) {
	switch r := m.runs[j.key()]; {
	case j.Subject == "":
	case m.jobs[r.previous] != nil:
		m.runs[j.key()] = modelRun{job: r.previous, state: "free"}
	default:
		delete(m.runs, j.key())
	}
}

// holds reports whether a job holds the guard of its subject: a live job, or an ordered one that waits for its retry.
func (m *model) holds(j *modelJob) bool { return m.busy(j.key()) && m.runs[j.key()].job == j.ID }

// end moves a job to done.
func (m *model) end(j *modelJob, to job.State, outcome job.OutcomeStatus, reason job.Reason, e modelEvent) {
	if j.runs() {
		m.rest(j)
	} else if m.holds(j) {
		m.release(j)
	}
	m.move(j, to, e)
	j.place, j.outcome, j.reason = "done", outcome, reason
	if j.uniqueWhile != "" {
		maps.DeleteFunc(m.keys, func(_ store.Line, holder int64) bool { return holder == j.ID })
	}
	j.uniqueWhile, j.isolated, j.cancel, j.begun, j.at = "", false, false, false, 0
}
