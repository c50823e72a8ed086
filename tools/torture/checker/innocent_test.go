package checker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// alibi is a run that seems wrong but is not. It contains races that the rules allow, or faults that explain the records.
type alibi struct {
	name  string
	live  func(p *past)
	forge func(r *history.Run)
}

var innocent = []alibi{
	{"a submission with an unknown outcome that was stored", func(p *past) {
		p.submit("demo.noop", `{"n":1}`, key("k"), outcome(history.Unknown)).claim("pod1").succeed()
		p.submit("demo.noop", `{"n":2}`, outcome(history.Unknown)).claim("pod1").succeed()
	}, nil},
	{"two submissions with unknown outcomes and no key, both stored", func(p *past) {
		for range 2 {
			p.submit("demo.noop", `{"n":3}`, outcome(history.Unknown)).claim("pod1").succeed()
		}
	}, nil},
	{"a submission with an unknown outcome that was lost", func(p *past) {
		p.run.Calls = append(p.run.Calls, history.Call{N: 999, Verb: "submit", Outcome: history.Unknown, Kind: "demo.noop", Began: p.step(), Ended: p.step()})
	}, nil},
	{"a job of an unknown kind", func(p *past) { p.submit("demo.stranger", `{}`) }, nil},
	{"jobs that are retried after a failure and after a cancel", func(p *past) {
		p.submit("demo.fail", `{}`).claim("pod1").fail().again().claim("pod2").fail()
		p.submit("demo.sleep", `{"ms":5000}`).cancelPending().again().claim("pod1").succeed()
		p.submit("demo.sleep", `{"ms":5000}`).claim("pod3").stop().again().claim("pod1").succeed()
	}, nil},
	{"failures and a cancel with on-failure jobs", func(p *past) {
		first := undone(p).fail()
		first.followed().claim("pod1").succeed()
		first.again().claim("pod2").fail().followed().claim("pod1").succeed()
		undone(p).askCancel().cancelled().followed().claim("pod1").succeed()
		undone(p).succeed()
	}, nil},
	{"a chain that continues after its step was retried", func(p *past) {
		p.submit("demo.sleep", `{"ms":5}`, chain(stepOf("demo.noop", `{}`))).claim("pod1").fail().again().claim("pod2").hand().succeed()
	}, nil},
	{"a job that waits while pods claim a more urgent backlog", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`, priority(-5))
		for range 10 {
			for _, process := range []string{"pod1", "pod2", "pod3", "worker1"} {
				p.submit("demo.noop", `{}`).claim(process).succeed()
			}
			p.pass(time.Second)
		}
		j.claim("pod1").succeed()
	}, nil},
	{"a job that was passed while it had a lower priority", func(p *past) {
		p.operate("narrow", 1, true)
		p.pass(4 * time.Second)
		first := p.submit("demo.sleep", `{"ms":10}`, lane("narrow")).claim("pod1")
		a, b := p.submit("demo.sleep", `{"ms":10}`, lane("narrow"), priority(1)), p.submit("demo.sleep", `{"ms":10}`, lane("narrow"), priority(9))
		p.pass(100 * time.Millisecond)
		first.succeed()
		b.claim("pod1").succeed()
		p.pass(5 * time.Second)
		a.nice(20).claim("pod1").succeed()
	}, nil},
	{"fires that were missed while the database was down and replaced by one", func(p *past) {
		anchor := p.schedule("s", "@every 10s", false, time.Time{})
		p.fault("F20", "down", "", 95*time.Second, nil)
		p.fire("s", anchor.Add(30*time.Second), 2) // the latest occurrence that is more than a minute late
		for n := 4; n <= 9; n++ {
			p.fire("s", anchor.Add(time.Duration(n)*10*time.Second), 0)
		}
		p.schedule("s", "@every 10s", true, anchor.Add(100*time.Second))
	}, nil},
	{"a schedule that was changed before its fire was decided", func(p *past) {
		p.fault("F20", "down", "", 9*time.Second, func() {
			anchor := p.schedule("s", "@every 2s", false, time.Time{})
			p.pass(3 * time.Second)
			p.schedule("s", "*/5 * * * * *", true, anchor.Add(2*time.Second))
		})
	}, nil},
	{"a schedule that fires while the first pods shut down and others are still running", func(p *past) {
		anchor := p.schedule("s", "@every 2s", false, time.Time{})
		for n := 1; n <= 2; n++ {
			at := anchor.Add(time.Duration(n) * 2 * time.Second)
			p.now = later(p.now, at)
			p.fire("s", at, 0)
			if n == 1 {
				p.term("pod3", 200*time.Millisecond)
			}
		}
	}, func(r *history.Run) { r.Settings.QuietFrom = r.Schedules[0].At }},
	{"a branch that is retried after its fan-out ended and is not counted twice", func(p *past) {
		fanned := p.submit("demo.fanout", joinOfTwo).claim("pod1")
		branches := fanned.fanOut()
		branches[0].claim("pod2").fail()
		branches[1].claim("pod2").succeed()
		fanned.joined(job.PipelinePartial).succeed()
		branches[0].again().claim("pod3").succeed()
	}, nil},
	{"a job for tomorrow", func(p *past) { p.submit("demo.noop", `{}`, delay(24*time.Hour)) }, func(r *history.Run) {
		due := r.Settings.Ended.Add(20 * time.Hour)
		newest(r).RunAfter = &due
	}},
	{"jobs of a lane that stays closed", func(p *past) {
		p.operate("narrow", 0, true)
		p.submit("demo.noop", `{}`, lane("narrow"))
	}, nil},
	{"a job that never ends, handed back by its pod", func(p *past) {
		p.operate("", 0, false)
		p.submit("demo.block", `{}`).claim("pod1").line("ctx_done", "shutdown").leave("job.handed_back", job.Pending, "system")
		p.latest().row.Attempt--
	}, nil},
	{"a job that kills its pods until it is failed for crashing", func(p *past) {
		j := p.submit("demo.exit", `{"code":3}`)
		for range 3 {
			j.claim("pod2")
			p.kill("pod2")
			p.lapse("pod2")
			j.recover()
			p.start("pod2")
		}
	}, nil},
	{"a crash that does not count because the job was claimed ahead of a free slot", func(p *past) {
		j := p.submit("demo.noop", `{}`).take("pod3")
		p.kill("pod3")
		p.lapse("pod3")
		j.row.Crashes--
		j.recover().claim("pod1").succeed()
	}, nil},
	{"crashes that a checkpoint forgives", func(p *past) {
		j := p.submit("demo.snooze", `{"times":3,"delay_ms":10}`)
		for range 4 {
			j.claim("pod2")
			p.kill("pod2")
			p.lapse("pod2")
			j.recover()
			p.start("pod2")
			p.pass(10 * time.Millisecond)
			j.claim("pod3")
			j.row.Crashes = 0 // the job's checkpoint reset the count
			j.snooze(10 * time.Millisecond)
		}
		j.claim("pod1").succeed()
	}, nil},
	{"a job whose row is deleted", func(p *past) {
		p.fault("F39", "delete_row", "", time.Second, func() {
			sleeper(p, "pod1").line("end", "ok")
			last(p.run.Faults).Note = map[string]any{"jobs": []any{fmt.Sprint(p.latest().row.ID)}}
		})
	}, func(r *history.Run) {
		r.Jobs = r.Jobs[:len(r.Jobs)-1]
	}},
	{"a pod that is frozen for less than its lease", func(p *past) {
		j := sleeper(p, "pod3")
		p.fault("F3", "freeze_near_lease", "pod3", 2800*time.Millisecond, func() { p.quiet("pod3") })
		p.beat("pod3")
		j.succeed()
	}, nil},
	{"a pod that loses contact with the database and hands its job back", func(p *past) {
		j := sleeper(p, "pod3")
		p.fault("F23", "blackhole", "pod3", 2900*time.Millisecond, func() {
			p.pass(2700 * time.Millisecond)
			j.line("ctx_done", job.ErrLeaseLost.Error())
		})
		j.handBack().claim("pod1").succeed()
	}, nil},
	{"a zombie that is notified a second after it wakes up and refused", func(p *past) {
		now, former := stolen(p)
		p.pass(900 * time.Millisecond)
		former.line("ctx_done", job.ErrLeaseLost.Error())
		former.line("effect", "")
		last(p.run.Ledger).Refused = true
		now.stale(1)
		p.pass(3 * time.Second)
		former.line("end", "409")
		now.succeed()
	}, nil},
	{"a zombie that is killed before it can be notified", func(p *past) {
		now, _ := stolen(p)
		p.pass(500 * time.Millisecond)
		p.kill("pod3")
		now.succeed()
	}, nil},
	{"a stopped job that is retried before the next heartbeat of its pod", func(p *past) {
		stoppedAndRetried(p, 1500*time.Millisecond)
	}, nil},
	{"a handler that ignores its context and whose job ends without it", func(p *past) {
		j := p.submit("demo.sleep", `{"ms":20000,"ignore_ctx":true}`).claim("pod1")
		former := *j
		j.line("ctx_done", job.ErrShutdown.Error())
		p.pass(time.Second)
		j.leave("job.handed_back", job.Pending, "system")
		j.row.Attempt--
		j.claim("pod2")
		p.pass(5 * time.Second)
		former.line("end", "ok")
		j.succeed()
	}, nil},
	{"a claim whose reply was lost and whose job is handed back unstarted", func(p *past) {
		var strays []*tale
		for range 8 {
			strays = append(strays, p.submit("demo.noop", `{}`).take("pod1"))
		}
		for range 8 {
			sleeper(p, "pod1").succeed()
		}
		for _, j := range strays {
			j.leave("job.handed_back", job.Pending, "system")
			j.row.Attempt--
			j.claim("pod2").succeed()
		}
	}, nil},
	{"leases that expire because a clock jumped", func(p *past) {
		j := sleeper(p, "pod3")
		former := *j
		p.fault("F36", "clock_forward", "", time.Second, func() {
			p.quiet("pod3")
			p.podEvent("pod.lapsed", "pod3", p.pods["pod3"].podID)
			p.quietly("pod3")
			j.recover().claim("pod1")
		})
		former.line("ctx_done", job.ErrLeaseLost.Error()).line("end", "lease lost")
		p.join("pod3")
		j.succeed()
	}, nil},
	{"cancels that are too late", func(p *past) {
		sleeper(p, "pod1").succeed().command("cancel", "succeeded", "", nil).command("stop", "", "already_terminal", nil)
	}, nil},
	{"a cancel that is answered after the job was taken from its dead pod", func(p *past) {
		j := sleeper(p, "pod2").askCancel()
		p.kill("pod2")
		p.lapse("pod2")
		j.row.Crashes++
		j.fields(j.leave("job.cancelled", job.Cancelled, "system"), `{"reason":"cancelled","pod_id":%q,"crashes":1}`, j.podID())
	}, nil},
	{"a cancel while the server is frozen", func(p *past) {
		j := sleeper(p, "pod1")
		p.fault("F22", "freeze_server", "", 9*time.Second, func() { j.askCancel() })
		p.pass(time.Second)
		j.line("ctx_done", "cancelled").cancelled()
	}, nil},
	{"jobs that wait while the server is down", func(p *past) {
		p.fault("F20", "down", "", 10*time.Second, func() { p.submit("demo.noop", `{}`) })
		p.pass(time.Second)
		p.latest().claim("pod1").succeed()
	}, nil},
	{"a job that waits while the machine itself stalls", func(p *past) {
		j := p.submit("demo.noop", `{}`)
		p.pass(9 * time.Second)
		j.claim("pod1").succeed()
	}, func(r *history.Run) {
		for i := range r.Samples {
			if s := &r.Samples[i]; i%20 == 0 {
				s.Took = 2 * time.Second
			}
		}
	}},
	{"jobs that wait while the queue is closed", func(p *past) {
		p.operate("", 0, false)
		j := p.submit("demo.noop", `{}`)
		p.pass(9 * time.Second)
		p.operate("", 0, true)
		j.claim("pod1").succeed()
	}, nil},
	{"a job that waits for its subject", func(p *past) {
		a, b := p.submit("demo.sleep", `{"ms":9000}`, subject("z")).claim("pod1"), p.submit("demo.sleep", `{"ms":1}`, subject("z"))
		p.pass(9 * time.Second)
		a.succeed()
		b.claim("pod2").succeed()
	}, nil},
	{"a step that starts on insert while a job of equal priority waits", func(p *past) {
		chained := p.submit("demo.sleep", `{"ms":1}`, chain(stepOf("demo.sleep", `{"ms":1}`))).claim("pod1")
		a := p.submit("demo.sleep", `{"ms":1}`)
		chained.hand().succeed()
		a.claim("pod1").succeed()
	}, nil},
	{"a job that was taken back goes before an older one", func(p *past) {
		j := death(p)
		a := p.submit("demo.sleep", `{"ms":1}`, subject("w"))
		p.lapse("pod2")
		j.recover().claim("pod1")
		a.claim("pod1").succeed()
		j.succeed()
	}, nil},
	{"a lane whose limit was lowered while its jobs were running", func(p *past) {
		p.operate("narrow", 3, true)
		p.pass(9 * time.Second)
		a, b := p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1"), p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1")
		p.operate("narrow", 1, true)
		p.pass(9 * time.Second)
		a.succeed()
		b.succeed()
		p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1").succeed()
	}, nil},
	{"two submissions with one unique key and different args", func(p *past) {
		j := p.submit("demo.noop", `{"first":1}`, unique("u"))
		again := last(p.run.Calls)
		p.run.Calls = append(p.run.Calls, history.Call{N: 998, Verb: "submit", Began: p.step(), Ended: p.step(), Outcome: history.OK, Job: again.Job,
			Kind: again.Kind, Unique: "u", Args: []byte(`{"second":2}`)})
		j.claim("pod1").succeed()
	}, nil},
	{"JSON that is written differently and is the same", func(p *past) { p.submit("demo.noop", `{"b":"é","a":[1, 2]}`).claim("pod1").succeed() },
		func(r *history.Run) { newest(r).Args = []byte(`{"a":[1,2],"b":"\u00e9"}`) }},
	{"a submission whose commit is delayed between its pod and the database", func(p *past) {
		sleeper(p, "pod2").succeed()
		var slow *tale
		p.fault("F23", "one_way", "pod1", 4*time.Second, func() {
			slow = p.submit("demo.sleep", `{"ms":1}`, key("slow"))
			p.pass(3 * time.Second)
			p.submit("demo.sleep", `{"ms":1}`, func(c *history.Call) { c.Pod = "pod2" }).claim("pod2").succeed()
		})
		slow.claim("pod1")
		for i, c := range p.run.Calls {
			if c.Job == slow.row.ID {
				p.run.Calls[i].Ended = p.now // other processes could not see the job before this time
			}
		}
		slow.succeed()
	}, nil},
	{"goroutines that a handler was asked to leak", func(p *past) { p.submit("demo.leak", `{"n":500}`).claim("pod1").succeed() },
		inTheEnd(func(n *history.PodNumbers) {
			if n.Pod == "pod1" {
				n.Goroutines += 500
			}
		})},
	{"memory of a fan-out that is too large", func(p *past) { p.submit("demo.fanout", `{"n":1000000}`).claim("pod1").fail() },
		inTheEnd(func(n *history.PodNumbers) {
			if n.Pod == "pod1" {
				n.RSS = 1045 << 20
			}
		})},
}

func TestTheInnocentAreNotAccused(t *testing.T) {
	t.Parallel()
	for _, one := range slices.Concat(innocent, keyInnocent, rateInnocent) {
		t.Run(strings.ReplaceAll(one.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			p := uneventful(t)
			one.live(p)
			r := p.done()
			if one.forge != nil {
				one.forge(r)
			}
			for _, f := range Check(r) {
				for _, v := range f.Violations {
					t.Errorf("%s: %s\n%s", f.Invariant, v.What, Timeline(r, v.Job))
				}
			}
		})
	}
}
