package checker

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// tale is one job's story in a fabricated past.
type tale struct {
	p     *past
	row   job.JobRow
	spans []running
	delay time.Duration
	key   string
}

type running struct {
	from, to time.Time
	podID    string
	fence    int64
}

// with modifies the call that submits a job.
type with func(*history.Call)

func subject(s string) with          { return func(c *history.Call) { c.Subject = s } }
func lane(name string) with          { return func(c *history.Call) { c.Lane = name } }
func priority(n int) with            { return func(c *history.Call) { c.Priority = &n } }
func delay(d time.Duration) with     { return func(c *history.Call) { c.Delay = d } }
func key(k string) with              { return func(c *history.Call) { c.Key = k } }
func tenant(k string) with           { return func(c *history.Call) { c.JobKey = k } }
func unique(k string) with           { return func(c *history.Call) { c.Unique = k } }
func outcome(o string) with          { return func(c *history.Call) { c.Outcome = o } }
func chain(steps ...job.Step) with   { return func(c *history.Call) { c.Chain = steps } }
func stepOf(kind, a string) job.Step { return job.Step{Kind: kind, Args: json.RawMessage(a)} }

// submit submits a job, which is then pending.
func (p *past) submit(kind, args string, more ...with) *tale {
	c := history.Call{N: len(p.run.Calls) + 1, Client: 1, Verb: "submit", Pod: "pod1", Began: p.step(), Outcome: history.OK, Status: 202, State: "pending",
		Kind: kind, Args: json.RawMessage(args)}
	for _, w := range more {
		w(&c)
	}
	j := job.JobRow{Kind: kind, Args: c.Args, Subject: c.Subject, Lane: "default", Priority: job.DefaultPriority, Submitter: "api"}
	if c.Lane != "" {
		j.Lane = c.Lane
	}
	if c.Priority != nil {
		j.Priority = *c.Priority
	}
	if c.Unique != "" {
		j.UniqueKey = &c.Unique
	}
	if len(c.Chain) > 0 {
		j.Planned, _ = json.Marshal(c.Chain)
	}
	t := p.add(j)
	t.delay = c.Delay
	t.keyed(c.JobKey)
	p.xid++
	t.event("job.enqueued", "", job.Pending, "api")
	c.Job, c.Ended = t.row.ID, p.step()
	if c.Outcome == history.Unknown {
		c.Job, c.Status, c.State = 0, 0, ""
	}
	p.run.Calls = append(p.run.Calls, c)
	return t
}

// keyed gives the job a key.
func (t *tale) keyed(key string) *tale {
	if t.key = key; key != "" {
		t.p.run.Keys = append(t.p.run.Keys, history.Keyed{Job: t.row.ID, Key: key})
	}
	return t
}

// latest returns the most recently submitted job.
func (p *past) latest() *tale { return p.tales[len(p.tales)-1] }

// add assigns the next ID to a job and adds it.
func (p *past) add(j job.JobRow) *tale {
	j.ID = int64(len(p.tales) + 1)
	if j.PipelineID == 0 {
		j.PipelineID = j.ID
	}
	j.Epoch, j.CreatedAt = 1, p.now
	t := &tale{p: p, row: j}
	p.tales = append(p.tales, t)
	return t
}

// event writes an event in the current transaction and puts the job into the event's target state.
func (t *tale) event(name string, from, to job.State, actor string) *job.Event {
	t.row.EventNo++
	id, no := t.row.ID, t.row.EventNo
	e := job.Event{Cursor: fmt.Sprintf("%d.%d.%d", t.p.xid, id, no), Job: &id, EventNo: &no, At: t.p.step(), From: from, To: to, Actor: actor,
		Event: name, Level: "info"}
	if name != "job.enqueued" {
		fence := t.row.Fence
		e.Fence = &fence
	}
	if from == job.Running && name != "job.cancel_requested" || name == "job.claimed" {
		podID := t.podID()
		e.PodID = &podID
	}
	t.row.State = to
	if to.Terminal() {
		at, outcome, reason := e.At, job.OK, job.ReasonOK
		if to != job.Succeeded {
			outcome, reason = job.Error, job.ReasonError
		}
		t.row.FinishedAt, t.row.Outcome, t.row.Reason = &at, &outcome, &reason
	}
	if from == job.Running && to != job.Running {
		t.spans[len(t.spans)-1].to = e.At
	}
	t.p.run.Events = append(t.p.run.Events, e)
	return &t.p.run.Events[len(t.p.run.Events)-1]
}

func (t *tale) fields(e *job.Event, format string, args ...any) *tale {
	e.Fields = json.RawMessage(fmt.Sprintf(format, args...))
	return t
}

func (t *tale) podID() string {
	if len(t.spans) == 0 {
		return ""
	}
	return t.spans[len(t.spans)-1].podID
}

func (t *tale) line(event, cause string) *tale {
	r := t.row
	t.p.run.Ledger = append(t.p.run.Ledger, history.Line{N: int64(len(t.p.run.Ledger) + 1), T: t.p.step(), Pod: t.pod(), PodID: t.podID(), Job: r.ID,
		Kind: r.Kind, Subject: r.Subject, Lane: r.Lane, Pipeline: r.PipelineID, Attempt: r.Attempt, Fence: r.Fence, Event: event, Cause: cause})
	return t
}

func (t *tale) pod() string {
	for name := range t.p.pods {
		if b := t.podID(); len(b) > len(name) && b[:len(name)] == name {
			return name
		}
	}
	return ""
}

// take records a claim by a pod whose handler writes no lines to the ledger.
func (t *tale) take(pod string) *tale {
	t.p.xid++
	return t.taken(pod, false)
}

func (t *tale) taken(pod string, born bool) *tale {
	t.row.Fence++
	t.row.Attempt++
	t.spans = append(t.spans, running{podID: t.p.pods[pod].podID, fence: t.row.Fence})
	e := t.event("job.claimed", job.Pending, job.Running, "system")
	t.spans[len(t.spans)-1].from = e.At
	if born {
		t.fields(e, `{"path":"fast"}`)
	}
	return t
}

// claim records a claim by a pod that then starts the handler.
func (t *tale) claim(pod string) *tale { return t.take(pod).line("start", "poll") }

// leave ends a claim.
func (t *tale) leave(name string, to job.State, actor string) *job.Event {
	t.p.xid++
	return t.event(name, job.Running, to, actor)
}

func (t *tale) succeed() *tale {
	t.line("end", "ok")
	t.leave("job.succeeded", job.Succeeded, "system")
	if t.row.Kind == "demo.echo" {
		t.row.Result = t.row.Args
	}
	for n := range demoArgsOf(&t.row).Rows {
		if t.row.Kind == "demo.tx" {
			t.p.run.Rows = append(t.p.run.Rows, history.Row{Job: t.row.ID, Fence: t.row.Fence, N: n + 1})
		}
	}
	return t
}

func (t *tale) fail() *tale {
	t.line("end", "no").leave("job.failed", job.Failed, "system")
	return t
}

// hand records a success after which the next step starts on insert in the same pod.
func (t *tale) hand() *tale {
	t.succeed()
	steps := stepsAfter(&t.row)
	parent := t.row.ID
	j := job.JobRow{Kind: steps[0].Kind, Args: steps[0].Args, Subject: t.row.Subject, Lane: t.row.Lane, Priority: t.row.Priority, PipelineID: t.row.PipelineID,
		ParentID: &parent, Step: t.row.Step + 1}
	plan := append(steps[1:len(steps):len(steps)], followsEnd(&t.row, job.Failed)...)
	if undo := demoArgsOf(&t.row).Undo; undo != nil {
		undo.When = job.OnFailureOrCancel
		plan = append(plan, *undo)
	}
	if len(plan) > 0 {
		j.Planned, _ = json.Marshal(plan)
	}
	child := t.p.add(j).keyed(t.key)
	child.event("job.enqueued", "", job.Pending, "handler")
	child.taken(t.pod(), true)
	return child.line("start", "fast")
}

// followed submits the job's on-failure job in the transaction that ends the job.
func (t *tale) followed() *tale {
	id, step := t.row.ID, followsEnd(&t.row, t.row.State)[0]
	next := t.p.add(job.JobRow{Kind: step.Kind, Args: step.Args, Lane: t.row.Lane, Priority: t.row.Priority, ParentID: &id})
	t.fields(t.event("job.followed", t.row.State, t.row.State, "system"), `{"job":"%d","kind":%q}`, next.row.ID, next.row.Kind)
	next.event("job.enqueued", "", job.Pending, "system")
	return next
}

// fanOut records that demo.fanout returns and the job begins to wait for its branches.
func (t *tale) fanOut() (branches []*tale) {
	t.line("end", "ok").leave("job.waiting", job.Waiting, "handler")
	parent := t.row.ID
	for n := range demoArgsOf(&t.row).N {
		no := n + 1
		b := t.p.add(job.JobRow{Kind: "demo.noop", Args: json.RawMessage(`{}`), Lane: t.row.Lane, Priority: t.row.Priority, PipelineID: t.row.PipelineID,
			ParentID: &parent, GroupID: &parent, ChildNo: &no, Step: t.row.Step + 1})
		b.event("job.enqueued", "", job.Pending, "handler")
		branches = append(branches, b)
	}
	return branches
}

// joined ends a waiting job and starts its join on insert.
func (t *tale) joined(status job.Status) *tale {
	t.p.xid++
	t.event("job.succeeded", job.Waiting, job.Succeeded, "system")
	t.p.run.Pipelines = append(t.p.run.Pipelines, history.Pipeline{ID: t.row.PipelineID, Status: status})
	step, parent := stepsAfter(&t.row)[0], t.row.ID
	join := t.p.add(job.JobRow{Kind: step.Kind, Args: step.Args, Lane: t.row.Lane, Priority: t.row.Priority, PipelineID: t.row.PipelineID, ParentID: &parent,
		Step: t.row.Step + 1})
	join.event("job.enqueued", "", job.Pending, "handler")
	join.taken("pod1", true)
	return join.line("start", "fast")
}

func (t *tale) handBack() *tale {
	t.line("end", "the pod is shutting down").leave("job.handed_back", job.Pending, "system")
	t.row.Attempt--
	return t
}

// retry records a failed attempt and, after the delay, the job's promotion.
func (t *tale) retry(wait time.Duration) *tale {
	return t.line("end", "no").fields(t.leave("job.retried", job.Pending, "handler"), `{"delay_ms":%d}`, wait.Milliseconds()).promote(wait)
}

// snooze records a snooze, which does not use up an attempt.
func (t *tale) snooze(wait time.Duration) *tale {
	t.line("end", "ok").fields(t.leave("job.snoozed", job.Pending, "handler"), `{"delay_ms":%d}`, wait.Milliseconds())
	t.row.Attempt--
	return t.promote(wait)
}

func (t *tale) promote(wait time.Duration) *tale {
	t.p.pass(wait)
	t.p.xid++
	t.event("job.promoted", job.Pending, job.Pending, "system")
	return t
}

// recover takes the job back from a pod that was declared dead.
func (t *tale) recover() *tale {
	t.row.Crashes++
	podID, to, name := t.podID(), job.Pending, "job.recovered"
	if t.row.Crashes >= t.p.run.Settings.MaxCrashes {
		to, name = job.Failed, "job.failed"
	} else {
		defer func() { t.row.Attempt-- }()
	}
	return t.fields(t.leave(name, to, "system"), `{"reason":"lease_lapsed","pod_id":%q,"crashes":%d}`, podID, t.row.Crashes)
}

// command records a call that cancels or stops the job, and calls do to apply its effect.
func (t *tale) command(verb, state, code string, do func()) *tale {
	c := history.Call{N: len(t.p.run.Calls) + 1, Client: 1, Verb: verb, Pod: "pod1", Began: t.p.step(), Job: t.row.ID, Outcome: history.OK, State: state, Code: code}
	if code != "" {
		c.Outcome = history.Refused
	}
	at := len(t.p.run.Calls)
	t.p.run.Calls = append(t.p.run.Calls, c)
	if do != nil {
		do()
	}
	t.p.run.Calls[at].Ended = t.p.step()
	return t
}

func (t *tale) askCancel() *tale {
	return t.command("cancel", "running", "", func() { t.leave("job.cancel_requested", job.Running, "api") })
}

func (t *tale) cancelled() *tale {
	t.line("end", "cancelled by an operator").leave("job.cancelled", job.Cancelled, "system")
	return t
}

// cancelPending cancels a pending job, which ends immediately.
func (t *tale) cancelPending() *tale {
	return t.command("cancel", "cancelled", "", func() {
		t.p.xid++
		t.event("job.cancelled", job.Pending, job.Cancelled, "api")
	})
}

// stop ends a running job immediately and tells its handler.
func (t *tale) stop() *tale {
	t.command("stop", "cancelled", "", func() { t.leave("job.cancelled", job.Cancelled, "api") })
	return t.line("ctx_done", "stopped by an operator").line("end", "stopped by an operator")
}

// again records an operator's retry.
func (t *tale) again() *tale {
	return t.command("retry", "pending", "", func() {
		t.p.xid++
		t.event("job.operator_retry", t.row.State, job.Pending, "api")
		t.row.Epoch, t.row.Attempt, t.row.Crashes = t.row.Epoch+1, 0, 0
		t.row.FinishedAt, t.row.Outcome, t.row.Reason = nil, nil, nil
	})
}

// nice changes the priority of a pending job.
func (t *tale) nice(priority int) *tale {
	t.command("nice", "", "", func() {
		t.p.xid++
		t.fields(t.event("job.niced", job.Pending, job.Pending, "api"), `{"priority":%d,"before":%d}`, priority, t.row.Priority)
		t.row.Priority = priority
	})
	last(t.p.run.Calls).Priority = &priority
	return t
}

// stale records that the previous owner's result was discarded.
func (t *tale) stale(fence int64) *tale {
	t.p.xid++
	e := t.event("job.stale_result", t.row.State, t.row.State, "system")
	*e.Fence = fence
	return t
}
