package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// ofKey runs n jobs of a kind and key at the same time.
func ofKey(p *past, kind, key string, n int) (list []*tale) {
	for range n {
		list = append(list, p.submit(kind, `{"ms":500}`, tenant(key)).claim("pod1"))
	}
	return list
}

// endAll ends jobs a moment later.
func endAll(p *past, list ...*tale) {
	p.pass(300 * time.Millisecond)
	for _, t := range list {
		t.succeed()
	}
}

var keyCrimes = []crime{
	{"I8b", "three jobs of a key run in a lane that allows two", func(p *past) { endAll(p, ofKey(p, "demo.noop", "k", 3)...) }, nil},
	{"I8b", "three jobs of a key and kind run in a lane that allows more", func(p *past) {
		p.limitKey("*", 9)
		endAll(p, ofKey(p, "demo.sleep", "k", 3)...)
	}, nil},
	{"I8b", "two jobs run of a key that has a lower limit than the others", func(p *past) {
		p.limitKey("k", 1)
		endAll(p, ofKey(p, "demo.noop", "k", 2)...)
	}, nil},
	{"I8b", "a job that is submitted after a limit was lowered starts beside those before it", func(p *past) {
		p.limitKey("*", 1)
		endAll(p, ofKey(p, "demo.noop", "k", 2)...)
	}, nil},
	{"I8b", "a step starts beside two jobs of its key", func(p *past) {
		list := ofKey(p, "demo.noop", "k", 2)
		step := p.submit("demo.noop", `{}`, tenant("other"), chain(stepOf("demo.echo", `{}`))).claim("pod1").hand()
		p.run.Keys[len(p.run.Keys)-1].Key = "k"
		endAll(p, append(list, step)...)
	}, nil},
	{"I14", "a job waits although no other job has its key", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`, tenant("alone"))
		p.pass(60 * time.Second)
		j.claim("pod1").succeed()
	}, nil},
	{"I14", "no job of a key starts although none runs", func(p *past) {
		p.pass(10 * time.Second)
		p.limitKey("*", 1)
		var list []*tale
		for range 5 {
			list = append(list, p.submit("demo.noop", `{}`, tenant("k")))
		}
		p.pass(60 * time.Second)
		for _, t := range list {
			t.claim("pod1").succeed()
		}
	}, nil},
	{"I21", "a job has another key than its submission", func(p *past) { p.submit("demo.noop", `{}`, tenant("k")).claim("pod1").succeed() },
		func(r *history.Run) { last(r.Keys).Key = "other" }},
}

var keyInnocent = []alibi{
	{"jobs of a key that run while its limit is lowered", func(p *past) {
		list := ofKey(p, "demo.noop", "k", 2)
		p.limitKey("*", 1)
		endAll(p, list...)
	}, nil},
	{"a job that was admitted before the limit was lowered", func(p *past) {
		first, second := p.submit("demo.noop", `{}`, tenant("k")), p.submit("demo.noop", `{}`, tenant("k"))
		p.limitKey("*", 1)
		endAll(p, first.claim("pod1"), second.claim("pod2"))
	}, nil},
	{"a limit whose change got no response", func(p *past) {
		p.limitKey("*", 3)
		last(p.run.Calls).Outcome = history.Unknown
		endAll(p, ofKey(p, "demo.noop", "k", 3)...)
	}, nil},
	{"a key without a limit beside keys with one", func(p *past) {
		p.limitKey("k", 5)
		endAll(p, ofKey(p, "demo.noop", "k", 4)...)
		p.limitKey("k", 0)
	}, nil},
	{"a step that keeps its parent's place after the limit was lowered", func(p *past) {
		first := p.submit("demo.noop", `{}`, tenant("k"), chain(stepOf("demo.echo", `{}`))).claim("pod1")
		second := ofKey(p, "demo.noop", "k", 1)[0]
		p.limitKey("*", 1)
		endAll(p, first.hand(), second)
	}, nil},
	{"a handler that starts after its claim was lost", func(p *past) {
		p.limitKey("*", 1)
		p.pass(10 * time.Second)
		lost := p.submit("demo.noop", `{}`, tenant("k")).take("pod3")
		zombie := *lost
		p.fault("F2", "freeze", "pod3", 5*time.Second, func() {
			p.quiet("pod3")
			p.lapse("pod3")
			lost.recover()
			lost.claim("pod1")
		})
		zombie.line("start", "poll").line("ctx_done", job.ErrLeaseLost.Error()).line("end", job.ErrLeaseLost.Error())
		p.join("pod3")
		p.pass(time.Second)
		lost.succeed()
	}, nil},
	{"a job that waits while another job of its key has the only place in a closed lane", func(p *past) {
		p.pass(10 * time.Second)
		shut := []*tale{p.submit("demo.sleep", `{"ms":500}`, tenant("k"), lane("limited")), p.submit("demo.sleep", `{"ms":500}`, tenant("k"), lane("limited"))}
		j := p.submit("demo.sleep", `{"ms":500}`, tenant("k"))
		p.pass(30 * time.Second)
		endAll(p, shut[0].claim("pod1"), shut[1].claim("pod1"))
		j.claim("pod1").succeed()
	}, nil},
	{"a job that waits behind those of its key while pods are idle", func(p *past) {
		p.pass(10 * time.Second)
		list := ofKey(p, "demo.noop", "k", 2)
		last := p.submit("demo.noop", `{}`, tenant("k"))
		p.pass(30 * time.Second)
		endAll(p, list...)
		last.claim("pod1").succeed()
	}, nil},
}
