package checker

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// pair runs a chain of two steps up to the second step and returns that step.
func pair(p *past) *tale {
	return p.submit("demo.noop", `{}`, chain(stepOf("demo.echo", `{"a":1}`))).claim("pod1").hand()
}

// undone returns the second step of a chain that has a compensation.
func undone(p *past) *tale {
	return p.submit("demo.chain", `{"steps":[{"kind":"demo.sleep","args":{"ms":5}}],"undo":{"kind":"demo.echo","args":{"undo":1}}}`).claim("pod1").hand()
}

var chainCrimes = []crime{
	{"I6", "a next step exists twice", func(p *past) {
		second := pair(p).succeed()
		again := p.add(second.row)
		p.xid++
		again.row.Fence, again.row.EventNo = 0, 0
		again.event("job.enqueued", "", job.Pending, "handler")
		again.claim("pod1").succeed()
	}, nil},
	{"I6", "a next step is missing", func(p *past) {
		p.submit("demo.noop", `{}`, chain(stepOf("demo.echo", `{}`))).claim("pod1").succeed()
	}, nil},
	{"I6", "a job that failed has a next step", func(p *past) { pair(p).succeed() }, func(r *history.Run) { r.Jobs[len(r.Jobs)-2].State = job.Failed }},
	{"I6", "a next step that was not requested", func(p *past) { pair(p).succeed() }, func(r *history.Run) { r.Jobs[len(r.Jobs)-2].Planned = nil }},
	{"I6", "a next step is created in a separate transaction", func(p *past) { pair(p).succeed() }, func(r *history.Run) {
		eventsOf(r, newest(r).ID)[0].Cursor = "999.1.1"
	}},
	{"I6", "a next step has different args", func(p *past) { pair(p).succeed() }, func(r *history.Run) { newest(r).Args = json.RawMessage(`{"a":2}`) }},
	{"I6", "a next step has lost the steps after it", func(p *past) {
		p.submit("demo.noop", `{}`, chain(stepOf("demo.noop", `{}`), stepOf("demo.noop", `{}`))).claim("pod1").hand().hand().succeed()
	}, func(r *history.Run) { r.Jobs[len(r.Jobs)-2].Planned = nil }},

	{"I6", "a next step lacks a compensation", func(p *past) { undone(p).succeed() }, func(r *history.Run) { newest(r).Planned = nil }},

	{"I13", "a chain ends early but reports success", func(p *past) {
		p.submit("demo.noop", `{}`, chain(stepOf("demo.echo", `{}`))).claim("pod1").succeed()
	}, nil},
	{"I13", "a chain continues after a failed step", func(p *past) { pair(p).succeed() }, func(r *history.Run) {
		r.Jobs[len(r.Jobs)-2].State = job.Failed
	}},
	{"I13", "a chain has more steps than requested", func(p *past) { pair(p).succeed() }, func(r *history.Run) {
		r.Jobs[len(r.Jobs)-2].Planned = nil
	}},
	{"I13", "a chain is abandoned halfway", func(p *past) { pair(p) }, nil},

	{"I13c", "a failure is not followed", func(p *past) { undone(p).fail() }, nil},
	{"I13c", "a cancel is not followed", func(p *past) { undone(p).askCancel().cancelled() }, nil},
	{"I13c", "a failure is followed by a job that was not requested", func(p *past) { undone(p).fail().followed().claim("pod1").succeed() }, func(r *history.Run) {
		r.Jobs[len(r.Jobs)-2].Planned = nil
	}},
	{"I13c", "a failure is followed by another kind", func(p *past) { undone(p).fail().followed().claim("pod1").succeed() }, func(r *history.Run) {
		newest(r).Kind = "demo.noop"
	}},
	{"I13c", "an on-failure job is lost", func(p *past) { undone(p).fail().followed().claim("pod1").succeed() }, func(r *history.Run) {
		r.Jobs = r.Jobs[:len(r.Jobs)-1]
	}},
	{"I13c", "an on-failure job is created in another transaction", func(p *past) { undone(p).fail().followed().claim("pod1").succeed() }, func(r *history.Run) {
		eventsOf(r, newest(r).ID)[0].Cursor = "999.1.1"
	}},
	{"I13c", "a failure is followed twice", func(p *past) {
		next := undone(p).fail().followed()
		again := p.add(next.row)
		again.row.PipelineID, again.row.EventNo = again.row.ID, 0
		again.event("job.enqueued", "", job.Pending, "system")
		again.claim("pod1").succeed()
		next.claim("pod1").succeed()
	}, nil},

	{"I13b", "a fan-out succeeds before its last branch", func(p *past) {
		j := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		list := j.fanOut()
		list[0].claim("pod1").succeed()
		list[1].claim("pod1")
		j.joined(job.PipelineSucceeded).succeed()
		list[1].succeed()
	}, nil},
	{"I13b", "a fan-out has lost a branch", func(p *past) {
		j := p.submit("demo.fanout", strings.Replace(joinOfTwo, "2", "1", 1)).claim("pod1")
		j.fanOut()[0].claim("pod1").succeed()
		j.joined(job.PipelineSucceeded).succeed()
	}, func(r *history.Run) { r.Jobs[len(r.Jobs)-3].Args = json.RawMessage(joinOfTwo) }},
	{"I13b", "a fan-out succeeds although all branches have failed", func(p *past) {
		j := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		for _, b := range j.fanOut() {
			b.claim("pod1").fail()
		}
		j.joined(job.PipelinePartial).succeed()
	}, nil},
	{"I13b", "a pipeline reports success although a branch has failed", func(p *past) {
		j := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		list := j.fanOut()
		list[0].claim("pod1").fail()
		list[1].claim("pod1").succeed()
		j.joined(job.PipelineSucceeded).succeed()
	}, nil},
	{"I13b", "a pipeline has succeeded before its last step", func(p *past) {
		j := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		for _, b := range j.fanOut() {
			b.claim("pod1").succeed()
		}
		j.joined(job.PipelineSucceeded)
	}, nil},
	{"I6", "a join exists twice", func(p *past) {
		j := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		for _, b := range j.fanOut() {
			b.claim("pod1").succeed()
		}
		join := j.joined(job.PipelineSucceeded).succeed()
		again := p.add(join.row)
		again.row.Fence, again.row.EventNo = 0, 0
		again.event("job.enqueued", "", job.Pending, "handler")
		again.claim("pod1").succeed()
	}, nil},

	{"I18", "a parent is missing", func(p *past) { pair(p).succeed() }, func(r *history.Run) {
		none := int64(99999)
		newest(r).ParentID = &none
	}},
	{"I18", "a step is numbered wrongly", func(p *past) { pair(p).succeed() }, func(r *history.Run) { newest(r).Step = 5 }},
	{"I18", "a step is in another pipeline", func(p *past) { pair(p).succeed() }, func(r *history.Run) { newest(r).PipelineID = 1 }},
	{"I18", "a first job is in another job's pipeline", nil, func(r *history.Run) { r.Jobs[1].PipelineID = 1 }},
}

var historyCrimes = []crime{
	{"I7", "an event is missing", func(p *past) { sleeper(p, "pod1").handBack().claim("pod2").succeed() }, func(r *history.Run) {
		id := newest(r).ID
		r.Events = slices.DeleteFunc(r.Events, func(e job.Event) bool { return e.Job != nil && *e.Job == id && *e.EventNo == 3 })
	}},
	{"I7", "the last event is missing", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) {
		id := newest(r).ID
		r.Events = slices.DeleteFunc(r.Events, func(e job.Event) bool { return e.Job != nil && *e.Job == id && *e.EventNo == 3 })
	}},
	{"I7", "an event does not start in the state where the previous one ended", func(p *past) {
		sleeper(p, "pod1").handBack().event("job.succeeded", job.Running, job.Succeeded, "system")
	}, nil},
	{"I7", "an invalid transition", func(p *past) {
		p.submit("demo.noop", `{}`).event("job.succeeded", job.Pending, job.Succeeded, "system")
	}, nil},
	{"I7", "a handler's event changes the job's state", func(p *past) { sleeper(p, "pod1").leave("handler.did", job.Succeeded, "handler") }, nil},
	{"I7", "a fence is skipped", func(p *past) {
		j := sleeper(p, "pod1").handBack()
		j.row.Fence++
		j.claim("pod1").succeed()
	}, nil},
	{"I7", "the row has a different fence", nil, func(r *history.Run) { r.Jobs[0].Fence++ }},
	{"I7", "a job has no history", nil, func(r *history.Run) {
		r.Events = slices.DeleteFunc(r.Events, func(e job.Event) bool { return e.Job != nil && *e.Job == 1 })
	}},
	{"I7", "a job was seen running without a claim event", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) {
		last(r.Samples).Running = append(last(r.Samples).Running, history.Running{Job: 1, Kind: "demo.noop", PodID: "pod1-boot1", Fence: 2})
	}},

	{"I8", "two jobs of a subject are seen running", func(p *past) {
		a := p.submit("demo.sleep", `{"ms":300}`, subject("x")).take("pod1")
		b := p.submit("demo.sleep", `{"ms":300}`, subject("x")).take("pod2")
		p.pass(300 * time.Millisecond)
		a.leave("job.succeeded", job.Succeeded, "system")
		b.leave("job.succeeded", job.Succeeded, "system")
	}, nil},
	{"I8", "two jobs of a subject run between two samples", func(p *past) {
		a := p.submit("demo.sleep", `{"ms":30}`, subject("x")).claim("pod1")
		b := p.submit("demo.sleep", `{"ms":30}`, subject("x")).claim("pod2")
		p.pass(20 * time.Millisecond)
		a.succeed()
		b.succeed()
	}, func(r *history.Run) {
		for i := range r.Samples {
			r.Samples[i].Running = nil
		}
	}},
	{"I8", "two jobs of a subject are claimed, without ledger lines of their handlers", func(p *past) {
		a := p.submit("demo.sleep", `{"ms":30}`, subject("x")).take("pod1")
		b := p.submit("demo.sleep", `{"ms":30}`, subject("x")).take("pod2")
		p.pass(5 * time.Second)
		a.leave("job.succeeded", job.Succeeded, "system")
		b.leave("job.succeeded", job.Succeeded, "system")
	}, func(r *history.Run) {
		for i := range r.Samples {
			r.Samples[i].Running = nil
		}
	}},
}

var commandCrimes = []crime{
	{"I9", "a job that was reported as cancelled succeeds", func(p *past) {
		sleeper(p, "pod1").command("cancel", "cancelled", "", nil).succeed()
	}, nil},
	{"I9", "a cancel that was reported as pending was never requested", func(p *past) {
		sleeper(p, "pod1").command("cancel", "running", "", nil).succeed()
	}, nil},
	{"I9", "a job succeeds after its cancel was accepted", func(p *past) { sleeper(p, "pod1").askCancel().succeed() }, nil},
	{"I9", "a job is retried after its cancel was accepted", func(p *past) {
		sleeper(p, "pod1").askCancel().retry(time.Millisecond).claim("pod1").fail()
	}, nil},
	{"I9", "a job is handed back after its cancel was accepted", func(p *past) { sleeper(p, "pod1").askCancel().handBack().claim("pod2").succeed() }, nil},
	{"I9", "a cancel does not reach its handler", func(p *past) {
		j := sleeper(p, "pod1").askCancel()
		p.pass(8 * time.Second)
		j.cancelled()
	}, nil},
	{"I9", "a stop does not reach its handler", func(p *past) {
		j := sleeper(p, "pod1")
		former := *j
		j.command("stop", "cancelled", "", func() { j.leave("job.cancelled", job.Cancelled, "api") })
		p.pass(8 * time.Second)
		former.line("end", "ok")
	}, nil},
	{"I9", "a cancelled job does not end", func(p *past) {
		j := sleeper(p, "pod1").askCancel()
		p.pass(time.Second)
		j.line("ctx_done", "cancelled")
		p.pass(25 * time.Second)
		j.cancelled()
	}, nil},
	{"I9", "a job is reported as ended but is not", func(p *past) {
		j := sleeper(p, "pod1").command("cancel", "", "already_terminal", nil)
		p.pass(time.Second)
		j.succeed()
	}, nil},
	{"I9", "a job is reported as retried but is not", func(p *past) { sleeper(p, "pod1").fail().command("retry", "pending", "", nil) }, nil},
	{"I9", "a job does not have the priority it was given", func(p *past) {
		five := 5
		p.submit("demo.sleep", `{"ms":5}`).nice(9).claim("pod1").succeed()
		last(p.run.Calls).Priority = &five
	}, nil},
	{"I9", "a job is reported as missing but exists", func(p *past) { sleeper(p, "pod1").command("stop", "", "not_found", nil).succeed() }, nil},
}
