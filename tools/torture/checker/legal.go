package checker

import (
	"slices"

	"github.com/trapeze-run/trapeze/job"
)

// fencesPerEpoch is the number of fences that a job has in each database epoch. A fence modulo fencesPerEpoch is the number of claims in
// that epoch.
const fencesPerEpoch = 10_000_000_000

// moves maps each event that Trapeze itself writes to the state transitions that it may record. Events written by handlers record no
// transition.
var moves = map[string][][2]job.State{
	"job.enqueued":         {{"", job.Pending}},
	"job.followed":         {{job.Failed, job.Failed}, {job.Cancelled, job.Cancelled}},
	"job.promoted":         {{job.Pending, job.Pending}},
	"job.moved":            {{job.Pending, job.Pending}, {job.Waiting, job.Waiting}, {job.AwaitingApproval, job.AwaitingApproval}},
	"job.claimed":          {{job.Pending, job.Running}},
	"job.waiting":          {{job.Running, job.Waiting}},
	"job.succeeded":        {{job.Running, job.Succeeded}, {job.Waiting, job.Succeeded}},
	"job.failed":           {{job.Running, job.Failed}, {job.Waiting, job.Failed}},
	"job.cancelled":        {{job.Running, job.Cancelled}, {job.Pending, job.Cancelled}, {job.Waiting, job.Cancelled}},
	"job.retried":          {{job.Running, job.Pending}},
	"job.snoozed":          {{job.Running, job.Pending}},
	"job.handed_back":      {{job.Running, job.Pending}},
	"job.recovered":        {{job.Running, job.Pending}},
	"job.cancel_requested": {{job.Running, job.Running}},
	"job.stale_result":     {{job.Running, job.Running}, {job.Pending, job.Pending}, {job.Waiting, job.Waiting}},
	"job.niced":            {{job.Pending, job.Pending}, {job.Waiting, job.Waiting}},
	"job.replaced":         {{job.Pending, job.AwaitingApproval}, {job.AwaitingApproval, job.AwaitingApproval}},
	"job.operator_retry": {{job.Failed, job.Pending}, {job.Cancelled, job.Pending}, {job.Failed, job.Waiting}, {job.Cancelled, job.Waiting},
		{job.Failed, job.AwaitingApproval}, {job.Cancelled, job.AwaitingApproval}},
}

// historyLegal (I7) checks each job's events. Events must be numbered from 1 without gaps, each must start in the state in which the
// previous one ended, and each must record a valid transition. A claim must use the next fence. The last event must match the job's row,
// and every job that a sample shows as running must have a matching claim event.
func historyLegal(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		if !f.judge(len(s.events) > 0, s.id, "job %d has no history", s.id) {
			continue
		}
		var state job.State
		var fence int64
		for i, e := range s.events {
			f.Checked++
			if number(e) != i+1 {
				f.accuse(s.id, "job %d: event %d (%s) has number %d", s.id, i+1, e.Event, number(e))
				break // later events would only repeat the same violation
			}
			if e.From != state {
				f.accuse(s.id, "job %d: event %d (%s) starts in state %q, but the job was %q", s.id, i+1, e.Event, e.From, state)
			}
			legal, known := moves[e.Event]
			if !known {
				legal = [][2]job.State{{job.Running, job.Running}}
			}
			if !slices.Contains(legal, [2]job.State{e.From, e.To}) {
				f.accuse(s.id, "job %d: event %d: %s from %q to %q", s.id, i+1, e.Event, e.From, e.To)
			}
			if claims(e) {
				was := fence
				if fence = fenceOf(e); fence%fencesPerEpoch != was%fencesPerEpoch+1 || fence <= was {
					f.accuse(s.id, "job %d: event %d claims with fence %d after %d", s.id, i+1, fence, was)
				}
			}
			state = e.To
		}
		last := s.events[len(s.events)-1]
		f.judge(s.job.State == last.To && s.job.Fence == fence && s.job.EventNo == number(last), s.id,
			"job %d is %s with fence %d after %d events, but its history has %s with fence %d after %d", s.id, s.job.State, s.job.Fence, s.job.EventNo,
			last.To, fence, number(last))
		if s.job.State == job.Running && (s.job.Pod == nil || len(s.claims) == 0 || *s.job.Pod != s.claims[len(s.claims)-1].podID) {
			f.accuse(s.id, "job %d is running on a different pod from the one in its latest claim", s.id)
		}
	}
	for i := range v.run.Samples {
		for _, r := range v.run.Samples[i].Running {
			s := v.stories[r.Job]
			if s == nil || !s.tampered {
				f.judge(s != nil && s.claim(r.Fence, r.PodID) != nil, r.Job, "job %d was seen running with fence %d on pod %s at %s, but no event records that claim",
					r.Job, r.Fence, short(r.PodID), clock(v.run.Samples[i].T))
			}
		}
	}
}
