package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

var lostCrimes = []crime{
	{"I1", "an accepted job is missing", func(p *past) { sleeper(p, "pod1").succeed() },
		func(r *history.Run) { r.Jobs = r.Jobs[:len(r.Jobs)-1] }},
	{"I1", "a step has a history but is missing", func(p *past) {
		p.submit("demo.noop", `{}`, chain(stepOf("demo.noop", `{}`))).claim("pod1").hand().succeed()
	}, func(r *history.Run) { r.Jobs = r.Jobs[:len(r.Jobs)-1] }},
	{"I1", "a job exists twice", nil, func(r *history.Run) { r.Jobs = append(r.Jobs, r.Jobs[0]) }},
	{"I1", "a refused submission created a job", func(p *past) {
		p.submit("demo.noop", `{"n":77}`, outcome(history.Refused)).claim("pod1").succeed()
	}, func(r *history.Run) { last(r.Calls).Job = 0 }},
	{"I1", "a submission with a key and an unknown outcome created two jobs", func(p *past) {
		for range 2 {
			p.submit("demo.noop", `{"n":78}`, key("k"), outcome(history.Unknown)).claim("pod1").succeed()
		}
	}, nil},
	{"I1", "a submission created a second job besides the confirmed one", func(p *past) {
		p.submit("demo.noop", `{"n":79}`, key("k")).claim("pod1").succeed()
		p.submit("demo.noop", `{"n":79}`, key("k"), outcome(history.Unknown)).claim("pod1").succeed()
	}, nil},
	{"I1", "a job is left pending", func(p *past) { p.submit("demo.noop", `{}`) }, nil},
	{"I1", "a job is left running", func(p *past) { sleeper(p, "pod1") }, nil},

	{"I2", "a job ends twice", func(p *past) { sleeper(p, "pod1").succeed().leave("job.failed", job.Failed, "system") }, nil},
	{"I2", "an event follows the end", func(p *past) {
		sleeper(p, "pod1").succeed().event("job.progress", job.Running, job.Running, "handler")
	}, nil},
	{"I2", "an ended job runs again by itself", func(p *past) {
		j := sleeper(p, "pod1").succeed()
		j.event("job.recovered", job.Succeeded, job.Pending, "system")
		j.claim("pod1").succeed()
	}, nil},
	{"I2", "the row has ended but the history has not", func(p *past) { sleeper(p, "pod1") }, func(r *history.Run) {
		j, now, ok, reason := newest(r), r.Settings.Ended, job.OK, job.ReasonOK
		j.State, j.FinishedAt, j.Outcome, j.Reason = job.Succeeded, &now, &ok, &reason
	}},
	{"I2", "the history has ended but the row has not", nil, func(r *history.Run) { r.Jobs[0].State = job.Running }},
	{"I2", "an end without an outcome", nil, func(r *history.Run) { r.Jobs[0].Outcome = nil }},
	{"I2", "an epoch that was never opened", nil, func(r *history.Run) { r.Jobs[0].Epoch = 2 }},
}

// stolen returns a job that was taken from a frozen pod and is running on another pod, and the job as the frozen pod knows it.
func stolen(p *past) (now, before *tale) {
	now = sleeper(p, "pod3")
	former := *now
	p.fault("F2", "freeze", "pod3", 6*time.Second, func() {
		p.quiet("pod3")
		p.lapse("pod3")
		now.recover()
		now.claim("pod1")
	})
	p.join("pod3")
	return now, &former
}

// stoppedAndRetried is the history of a job that an operator stops and retries. Its first handler is notified after the given time.
func stoppedAndRetried(p *past, after time.Duration) {
	j := sleeper(p, "pod1")
	former := *j
	j.command("stop", "cancelled", "", func() { j.leave("job.cancelled", job.Cancelled, "api") })
	j.again().claim("pod2")
	p.pass(after)
	former.line("ctx_done", "stopped by an operator").line("end", "stopped by an operator")
	j.succeed()
}

var fenceCrimes = []crime{
	{"I3", "a former owner's result is accepted", func(p *past) {
		now, former := stolen(p)
		*former.line("end", "ok").leave("job.succeeded", job.Succeeded, "system").Fence = 1
		now.row.EventNo, now.row.State = former.row.EventNo, job.Succeeded
	}, nil},
	{"I3", "a former owner's note is accepted", func(p *past) {
		now, _ := stolen(p)
		*now.event("handler.note", job.Running, job.Running, "handler").Fence = 1
		now.succeed()
	}, nil},
	{"I3", "a result is accepted between the recovery and the next claim", func(p *past) {
		j := sleeper(p, "pod3")
		p.fault("F2", "freeze", "pod3", 6*time.Second, func() {
			p.quiet("pod3")
			p.lapse("pod3")
			j.recover()
		})
		j.leave("job.succeeded", job.Succeeded, "system")
	}, nil},
	{"I3", "a result is accepted from another pod", func(p *past) {
		j := sleeper(p, "pod1")
		j.line("end", "ok")
		*j.leave("job.succeeded", job.Succeeded, "system").PodID = p.pods["pod2"].podID
	}, nil},
	{"I3", "a fence is used twice", func(p *past) {
		j := sleeper(p, "pod1").handBack()
		j.row.Fence--
		j.claim("pod2").succeed()
	}, nil},
	{"I3", "the current claim is called stale", func(p *past) { sleeper(p, "pod1").stale(1).succeed() }, nil},
	{"I3", "a handler starts without a claim", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) {
		line := *last(r.Ledger)
		line.N, line.Event, line.Fence = line.N+1, "start", 7
		r.Ledger = append(r.Ledger, line)
	}},
	{"I3", "a handler starts on a pod that has no claim", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) {
		last(r.Ledger).Event, last(r.Ledger).PodID = "start", "pod2-boot1"
	}},
	{"I3", "a handler starts before its claim", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) {
		start := &r.Ledger[len(r.Ledger)-2]
		start.T = start.T.Add(-20 * time.Millisecond)
	}},
	{"I3", "a pod that was declared dead still claims after its jobs were taken back", func(p *past) {
		stolen(p)
		p.pods["pod3"].podID = "pod3-boot1"
		sleeper(p, "pod3").succeed()
	}, nil},
	{"I3", "a pod that was declared dead still claims, with nothing to take back", func(p *past) {
		p.fault("F2", "freeze", "pod3", 6*time.Second, func() { p.quiet("pod3"); p.lapse("pod3") })
		p.pass(5 * time.Second)
		sleeper(p, "pod3").succeed()
	}, nil},
	{"I3", "a closed row is reopened", func(p *past) {
		p.fault("F2", "freeze", "pod3", 6*time.Second, func() { p.quiet("pod3"); p.lapse("pod3") })
	}, nil},
	{"I3", "a pod never learns that it was declared dead", func(p *past) {
		p.fault("F2", "freeze", "pod3", 6*time.Second, func() { p.quiet("pod3"); p.lapse("pod3") })
		p.pass(20 * time.Second)
	}, func(r *history.Run) {
		r.Events = slices.DeleteFunc(r.Events, func(e job.Event) bool { return e.Event == "pod.left" && *e.Pod == "pod3" })
	}},
	{"I3", "rows from the final transaction exist twice", nil, func(r *history.Run) { r.Rows = append(r.Rows, r.Rows...) }},
	{"I3", "rows from the final transaction are missing", nil, func(r *history.Run) { r.Rows = r.Rows[:1] }},
	{"I3", "rows exist from a claim that did not end the job", nil, func(r *history.Run) { r.Rows[0].Fence = 9 }},
	{"I3", "rows exist from a job that failed", func(p *past) { p.submit("demo.tx", `{"rows":1}`).claim("pod1").fail() },
		func(r *history.Run) { r.Rows = append(r.Rows, history.Row{Job: newest(r).ID, Fence: 1, N: 1}) }},
}

var ownerCrimes = []crime{
	{"I4", "a job is claimed while it is running", func(p *past) {
		j := sleeper(p, "pod1")
		j.take("pod2").succeed()
	}, nil},
	{"I4", "two handlers start for one claim", func(p *past) { sleeper(p, "pod1").line("start", "fast").succeed() }, nil},
	{"I4", "a job is taken from a pod that was not declared dead", func(p *past) { sleeper(p, "pod1").recover().claim("pod2").succeed() }, nil},
	{"I4", "a pod is declared dead before its lease expires", func(p *past) {
		p.pass(time.Second)
		p.quiet("pod2")
		p.podEvent("pod.lapsed", "pod2", p.pods["pod2"].podID)
		p.join("pod2")
	}, nil},
	{"I4", "a job is handed back while its handler continues without notice", func(p *past) {
		j := sleeper(p, "pod1")
		former := *j
		j.leave("job.handed_back", job.Pending, "system")
		j.row.Attempt--
		j.claim("pod2")
		former.line("end", "ok")
		j.succeed()
	}, nil},
	{"I4", "a zombie's handler continues without notice", func(p *past) {
		now, former := stolen(p)
		p.pass(12 * time.Second)
		former.line("end", "ok")
		now.succeed()
	}, nil},
	{"I4", "a zombie's handler continues and is notified too late", func(p *past) {
		now, former := stolen(p)
		p.pass(6 * time.Second)
		former.line("ctx_done", "lease lost")
		p.pass(time.Second)
		former.line("end", "lease lost")
		now.succeed()
	}, nil},
	{"I4", "a stopped job is retried and its handler is notified too late", func(p *past) {
		stoppedAndRetried(p, 8*time.Second)
	}, nil},
	{"I4", "an effect of a former owner is accepted", func(p *past) {
		now, former := stolen(p)
		former.line("effect", "").line("ctx_done", "lease lost").line("end", "lease lost")
		now.succeed()
	}, nil},

	{"I5", "one attempt too many", func(p *past) { sleeper(p, "pod1").retry(10 * time.Millisecond).claim("pod1").succeed() }, nil},
	{"I5", "a hand-back uses up an attempt", func(p *past) {
		j := sleeper(p, "pod1").handBack()
		j.row.Attempt++
		j.claim("pod1").succeed()
	}, nil},
	{"I5", "a crash is not counted", func(p *past) { sleeper(p, "pod1").succeed() }, func(r *history.Run) { newest(r).Crashes = 1 }},
	{"I5", "a crash is skipped in the count", func(p *past) {
		j := sleeper(p, "pod3")
		p.kill("pod3")
		p.lapse("pod3")
		j.row.Crashes++
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I5", "the crash of a second claim does not count", func(p *past) {
		j := sleeper(p, "pod1").recover().claim("pod1")
		j.row.Crashes--
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I5", "the crash of a job with a subject, which is never claimed ahead, does not count", func(p *past) {
		j := p.submit("demo.sleep", `{"ms":500}`, subject("S")).claim("pod1")
		j.row.Crashes--
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I5", "a job runs again after its last crash", func(p *past) {
		p.run.Settings.MaxCrashes = 9
		j := sleeper(p, "pod1")
		for range 3 {
			j.recover().claim("pod1")
		}
		j.succeed()
		p.run.Settings.MaxCrashes = 3
	}, nil},
	{"I5", "a job is failed for crashing before its last crash", func(p *past) {
		p.run.Settings.MaxCrashes = 1
		sleeper(p, "pod1").recover()
		p.run.Settings.MaxCrashes = 3
	}, nil},
}
