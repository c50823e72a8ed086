package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// setRate records a change of the rate of the lane rated.
func (p *past) setRate(rate, burst int, outcome string) {
	p.run.Calls = append(p.run.Calls, history.Call{N: len(p.run.Calls) + 1, Verb: "rate", Lane: "rated", Rate: &rate, Burst: &burst, Began: p.step(), Ended: p.step(),
		Outcome: outcome})
	p.pass(20 * time.Second)
}

// spaced runs n jobs in the lane rated, whose starts are a given time apart.
func spaced(p *past, n int, apart time.Duration) {
	for range n {
		p.submit("demo.noop", `{}`, lane("rated")).claim("pod1").succeed()
		p.pass(apart)
	}
}

// ordered runs a job that is snoozed, and another one of its subject: meanwhile, or afterwards.
func ordered(p *past, meanwhile bool, how ...with) {
	first := p.submit("demo.snooze", `{}`, append(how, subject("s"))...)
	second := p.submit("demo.snooze", `{}`, append(how, subject("s"))...)
	first.claim("pod1").line("end", "ok").fields(first.leave("job.snoozed", "pending", "handler"), `{"delay_ms":300}`)
	first.row.Attempt--
	if p.pass(100 * time.Millisecond); meanwhile {
		second.claim("pod2").succeed()
	}
	first.promote(200 * time.Millisecond).claim("pod1").succeed()
	if !meanwhile {
		second.claim("pod2").succeed()
	}
}

func keeps(c *history.Call) { c.Ordered = true }

var rateCrimes = []crime{
	{"I8d", "more jobs start at once than the burst", func(p *past) { spaced(p, 9, 0) }, nil},
	{"I8d", "jobs start faster than the rate", func(p *past) { spaced(p, 30, 250*time.Millisecond) }, nil},
	{"I8d", "jobs start at the former rate", func(p *past) {
		p.setRate(1, 2, history.OK)
		spaced(p, 20, 500*time.Millisecond)
	}, nil},
	{"I14", "no job of a lane with a rate starts", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`, lane("rated"))
		p.pass(30 * time.Second)
		j.claim("pod1").succeed()
	}, nil},
	{"I8c", "a job overtakes an ordered one that is snoozed", func(p *past) { ordered(p, true, keeps) }, nil},
}

var rateInnocent = []alibi{
	{"a burst, and then the rate", func(p *past) {
		spaced(p, 2, 0)
		spaced(p, 20, 500*time.Millisecond)
	}, nil},
	{"a rate that was raised without a response", func(p *past) {
		p.setRate(8, 2, history.Unknown)
		spaced(p, 40, 150*time.Millisecond)
	}, nil},
	{"a raised rate that a pod applies after a lower one", func(p *past) {
		p.setRate(8, 2, history.Unknown)
		last(p.run.Calls).Ended = p.now.Add(-time.Second)
		p.now = last(p.run.Calls).Ended
		p.setRate(1, 2, history.OK)
		spaced(p, 40, 150*time.Millisecond)
	}, nil},
	{"jobs that start at the pace of a slow rate", func(p *past) {
		p.setRate(1, 1, history.OK)
		a, b := p.submit("demo.noop", `{}`, lane("rated")), p.submit("demo.noop", `{}`, lane("rated"))
		a.claim("pod1").succeed()
		p.pass(2500 * time.Millisecond)
		b.claim("pod2").succeed()
	}, nil},
	{"a start that a frozen pod took long before", func(p *past) {
		p.fault("F2", "freeze", "pod3", 10*time.Second, nil)
		for range 8 {
			p.submit("demo.noop", `{}`, lane("rated")).claim("pod3").succeed()
		}
	}, nil},
	{"a job that overtakes one that is not ordered", func(p *past) { ordered(p, true) }, nil},
	{"the next job after an ordered one that was cancelled", func(p *past) {
		first := p.submit("demo.snooze", `{}`, subject("s"), keeps).claim("pod1").snooze(time.Second)
		first.cancelPending()
		p.submit("demo.snooze", `{}`, subject("s"), keeps).claim("pod2").succeed()
	}, nil},
}
