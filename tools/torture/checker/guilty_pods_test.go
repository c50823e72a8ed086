package checker

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// death kills a pod that is running a job.
func death(p *past) *tale {
	p.pass(10 * time.Second)
	j := sleeper(p, "pod2")
	p.pass(1500 * time.Millisecond)
	p.kill("pod2")
	return j
}

var podCrimes = []crime{
	{"I10", "a dead pod is declared dead too late", func(p *past) {
		j := death(p)
		p.pass(9 * time.Second)
		p.lapse("pod2")
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I10", "a dead pod's job is taken back too late", func(p *past) {
		j := death(p)
		p.lapse("pod2")
		p.pass(7 * time.Second)
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I10", "a job that was taken back waits while pods have room", func(p *past) {
		j := death(p)
		p.lapse("pod2")
		j.recover()
		p.pass(12 * time.Second)
		j.claim("pod1").succeed()
	}, nil},

	{"I11", "a pod that was told to shut down reports an error", func(p *past) { p.pass(10 * time.Second); p.term("pod2", time.Second) },
		func(r *history.Run) { r.Pods[1].Exit = 1 }},
	{"I11", "a pod takes too long to shut down", func(p *past) { p.pass(10 * time.Second); p.term("pod2", 8*time.Second) }, nil},
	{"I11", "a pod claims after it was told to shut down", func(p *past) {
		p.pass(10 * time.Second)
		at := p.step()
		p.pods["pod2"].now.TermAt, p.pods["pod2"].now.TermsGot = &at, 1
		p.pass(3 * time.Second)
		p.submit("demo.noop", `{}`).take("pod2").leave("job.succeeded", job.Succeeded, "system")
		p.pods["pod2"].now.Ended = p.step()
	}, nil},
	{"I11", "a handler starts after its pod was told to shut down", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`).take("pod2")
		at := p.step()
		p.pods["pod2"].now.TermAt, p.pods["pod2"].now.TermsGot = &at, 1
		p.pass(3 * time.Second)
		j.line("start", "poll").succeed()
		p.pods["pod2"].now.Ended = p.step()
	}, nil},
	{"I11", "a pod that shuts down normally leaves a job behind", func(p *past) {
		p.pass(10 * time.Second)
		j := sleeper(p, "pod2")
		p.term("pod2", 3*time.Second)
		j.recover().claim("pod1").succeed()
	}, nil},

	{"I14", "a job waits while pods have room", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`)
		p.pass(10 * time.Second)
		j.claim("pod1").succeed()
	}, nil},
	{"I14", "a job waits while pods claim less urgent jobs or jobs of another lane", func(p *past) {
		p.operate("narrow", 1, true)
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`, priority(5))
		for range 10 {
			for _, pod := range []string{"pod1", "pod2", "pod3"} {
				p.submit("demo.noop", `{}`, priority(9), lane("narrow")).claim(pod).succeed()
			}
			p.pass(time.Second)
		}
		j.claim("pod1").succeed()
	}, nil},
	{"I14", "a job waits after its hand-back while pods have room", func(p *past) {
		p.pass(10 * time.Second)
		j := sleeper(p, "pod1").handBack()
		p.pass(10 * time.Second)
		j.claim("pod2").succeed()
	}, nil},
	{"I14", "a job is claimed but not run", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`).take("pod1")
		p.pass(20 * time.Second)
		j.leave("job.handed_back", job.Pending, "system")
		j.row.Attempt--
		j.claim("pod2").succeed()
	}, nil},
	{"I14", "a job is claimed but not run because a fleet at rest lost the reply", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`)
		p.fault("F24", "lost_reply", "", 100*time.Millisecond, func() { j.take("pod1") })
		p.run.Faults[len(p.run.Faults)-1].No = -1
		p.pass(6 * time.Second)
		j.leave("job.handed_back", job.Pending, "system")
		j.row.Attempt--
		j.claim("pod2").succeed()
	}, nil},
	{"I14", "no job finishes", func(p *past) {
		p.pass(10 * time.Second)
		var open []*tale
		for range 60 {
			p.pass(500 * time.Millisecond)
			open = append(open, p.submit("demo.noop", `{}`, subject(fmt.Sprint(len(open)))))
		}
		for _, j := range open {
			j.claim("pod1").succeed()
		}
	}, nil},

	{"I16", "a pod runs more than its slots", func(p *past) {
		var open []*tale
		for range 9 {
			open = append(open, sleeper(p, "pod1"))
		}
		for _, j := range open {
			j.succeed()
		}
	}, nil},
	{"I16", "two pod IDs of a process run more than its slots", func(p *past) {
		var open []*tale
		for i := range 9 {
			if i == 4 {
				p.join("pod1")
			}
			open = append(open, sleeper(p, "pod1"))
		}
		for _, j := range open {
			j.succeed()
		}
	}, nil},
	{"I16", "a lane runs more than its share", func(p *past) {
		p.operate("narrow", 1, true)
		p.pass(10 * time.Second)
		a, b := p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1"), p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1")
		a.succeed()
		b.succeed()
	}, nil},
	{"I16", "a closed lane runs a job", func(p *past) {
		p.operate("narrow", 2, false)
		p.pass(10 * time.Second)
		p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1").succeed()
		p.operate("narrow", 2, true)
	}, nil},
	{"I16", "a closed queue lets a job through", func(p *past) {
		p.operate("", 0, false)
		p.pass(10 * time.Second)
		sleeper(p, "pod1").succeed()
		p.operate("", 0, true)
	}, nil},
}

// queue submits two waiting jobs, the first before the second.
func queue(p *past, first, second []with) (a, b *tale) {
	sleeper(p, "pod1").succeed() // shows that the pod handles their kind
	return p.submit("demo.sleep", `{"ms":1}`, first...), p.submit("demo.sleep", `{"ms":1}`, second...)
}

var orderCrimes = []crime{
	{"I17", "a less urgent job goes first", func(p *past) {
		a, b := queue(p, []with{priority(20)}, []with{priority(10)})
		b.claim("pod1").succeed()
		a.claim("pod1").succeed()
	}, nil},
	{"I17", "a later job goes first", func(p *past) {
		a, b := queue(p, nil, nil)
		b.claim("pod1").succeed()
		a.claim("pod1").succeed()
	}, nil},
	{"I17", "a submission that starts on insert passes a job of equal priority", func(p *past) {
		a, _ := queue(p, nil, []with{subject("other")})
		b := p.submit("demo.sleep", `{"ms":1}`)
		b.taken("pod1", true).line("start", "fast").succeed()
		a.claim("pod1").succeed()
	}, nil},
	{"I17", "a step that starts on insert passes a more urgent job", func(p *past) {
		chained := p.submit("demo.sleep", `{"ms":1}`, chain(stepOf("demo.sleep", `{"ms":1}`))).claim("pod1")
		a := p.submit("demo.sleep", `{"ms":1}`, priority(50))
		chained.hand().succeed()
		a.claim("pod1").succeed()
	}, nil},

	{"I21", "args are altered", nil, func(r *history.Run) { row(r, kind("demo.echo")).Args = json.RawMessage(`{"big":12345678901234567891}`) }},
	{"I21", "args lose a digit", func(p *past) { p.submit("demo.noop", `{"e":1.0}`).claim("pod1").succeed() },
		func(r *history.Run) { newest(r).Args = json.RawMessage(`{"e":1}`) }},
	{"I21", "a subject is altered", nil, func(r *history.Run) { r.Jobs[0].Subject = "S" }},
	{"I21", "a lane is altered", func(p *past) { p.submit("demo.noop", `{}`, lane("narrow")).claim("pod1").succeed() },
		func(r *history.Run) { newest(r).Lane = "default" }},
	{"I21", "a priority is altered", nil, func(r *history.Run) { r.Jobs[0].Priority++ }},
	{"I21", "a kind is altered", nil, func(r *history.Run) { r.Jobs[0].Kind = "demo.sleep" }},
	{"I21", "a declared step is altered", func(p *past) { pair(p).succeed() }, func(r *history.Run) {
		r.Jobs[len(r.Jobs)-2].Planned = json.RawMessage(`[{"kind":"demo.echo","args":{"a":2}}]`)
	}},
	{"I21", "an echo is altered", nil, func(r *history.Run) { row(r, kind("demo.echo")).Result = json.RawMessage(`{}`) }},
	{"I21", "a job with a unique key matches none of its submissions", func(p *past) { p.submit("demo.noop", `{}`, unique("u")).claim("pod1").succeed() },
		func(r *history.Run) { newest(r).Args = json.RawMessage(`{"other":1}`) }},

	{"I24", "too many goroutines", nil, func(r *history.Run) { r.Samples[20].Pods[0].Goroutines = 5000 }},
	{"I24", "too many files", nil, func(r *history.Run) { r.Samples[20].Pods[0].Files = 5000 }},
	{"I24", "too much memory", nil, func(r *history.Run) { r.Samples[20].Pods[0].RSS = 8 << 30 }},
	{"I24", "too many connections", nil, func(r *history.Run) { r.Samples[20].Pods[0].Connections = 90 }},
	{"I24", "goroutines that never end", nil, inTheEnd(func(n *history.PodNumbers) { n.Goroutines += 90 })},
	{"I24", "files that stay open", nil, inTheEnd(func(n *history.PodNumbers) { n.Files += 60 })},
	{"I24", "connections that stay", nil, inTheEnd(func(n *history.PodNumbers) { n.Connections += 20 })},
}

// inTheEnd returns a function that changes the pods' resource usage in the samples of the quiet tail.
func inTheEnd(change func(*history.PodNumbers)) func(*history.Run) {
	return func(r *history.Run) {
		for i := range r.Samples {
			for k := range r.Samples[i].Pods {
				if r.Samples[i].T.After(r.Settings.QuietFrom) {
					change(&r.Samples[i].Pods[k])
				}
			}
		}
	}
}
