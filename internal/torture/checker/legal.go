package checker

import (
	"slices"

	"github.com/trapeze-run/trapeze/job"
)

// fencesPerEpoch is the number of fences that a job has in one history of the database: the remainder counts its claims.
const fencesPerEpoch = 10_000_000_000

// moves are the events of the product, with the moves that each may tell of. Those of handlers tell of none.
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
	"job.retry_later":      {{job.Running, job.Pending}},
	"job.handed_back":      {{job.Running, job.Pending}},
	"job.recovered":        {{job.Running, job.Pending}},
	"job.cancel_requested": {{job.Running, job.Running}},
	"job.stale_result":     {{job.Running, job.Running}, {job.Pending, job.Pending}, {job.Waiting, job.Waiting}},
	"job.niced":            {{job.Pending, job.Pending}, {job.Waiting, job.Waiting}},
	"job.operator_retry": {{job.Failed, job.Pending}, {job.Cancelled, job.Pending}, {job.Failed, job.Waiting}, {job.Cancelled, job.Waiting},
		{job.Failed, job.AwaitingApproval}, {job.Cancelled, job.AwaitingApproval}},
}

// historyLegal (I7): a job's events are numbered from 1 without a gap, each begins where the one before ended and tells of
// a move that exists, a claim's fence is the next one, the last event is where the job's row stands, and whatever a sample
// saw running had been claimed so.
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
				f.accuse(s.id, "job %d: its event %d (%s) is numbered %d", s.id, i+1, e.Event, number(e))
				break // whatever follows would only say so again
			}
			if e.From != state {
				f.accuse(s.id, "job %d: event %d (%s) begins at %q, the job was %q", s.id, i+1, e.Event, e.From, state)
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
			"job %d is %s with fence %d after %d events, by its history %s with fence %d after %d", s.id, s.job.State, s.job.Fence, s.job.EventNo,
			last.To, fence, number(last))
		if s.job.State == job.Running && (s.job.Pod == nil || len(s.claims) == 0 || *s.job.Pod != s.claims[len(s.claims)-1].boot) {
			f.accuse(s.id, "job %d runs on another pod than its latest claim says", s.id)
		}
	}
	for i := range v.run.Samples {
		for _, r := range v.run.Samples[i].Running {
			s := v.stories[r.Job]
			if s == nil || !s.tampered {
				f.judge(s != nil && s.claim(r.Fence, r.Boot) != nil, r.Job, "job %d was seen running with fence %d on boot %s at %s, and no event claims it so",
					r.Job, r.Fence, short(r.Boot), clock(v.run.Samples[i].T))
			}
		}
	}
}
