package checker

import (
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// takenBack hands back a job while its worker is still running it.
func (t *tale) takenBack() *tale {
	t.leave("job.handed_back", job.Pending, "system")
	t.row.Attempt--
	return t
}

var remoteCrimes = []crime{
	{"I10b", "a job is handed back while its worker is running it", func(p *past) {
		j := sleeper(p, "worker1")
		p.pass(6 * time.Second)
		j.takenBack().claim("pod1").succeed()
	}, nil},
	{"I10b", "a dead worker's job is handed back as if it had never run", func(p *past) {
		p.pass(10 * time.Second)
		j := sleeper(p, "worker1")
		p.pass(6 * time.Second)
		p.kill("worker1")
		j.takenBack().claim("pod1").succeed()
		p.lapse("worker1")
	}, nil},
	{"I10b", "a worker that has died is never declared dead", func(p *past) {
		p.pass(10 * time.Second)
		p.kill("worker1")
		p.pass(20 * time.Second)
	}, nil},
	{"I10b", "a job succeeds on a worker without a handler", func(p *past) {
		p.submit("demo.noop", `{}`).take("worker1").leave("job.succeeded", job.Succeeded, "system")
	}, nil},
	{"I4", "a worker is not notified that its job was handed back", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.block", `{}`).claim("worker1")
		p.pass(2 * time.Second)
		j.takenBack().claim("pod1")
		p.pass(20 * time.Second)
		j.stop()
	}, nil},
	{"I14", "a job that was sent to a worker neither starts there nor is handed back", func(p *past) {
		p.pass(10 * time.Second)
		j := p.submit("demo.noop", `{}`).take("worker1")
		p.pass(10 * time.Second)
		j.takenBack().claim("pod1").succeed()
	}, nil},
	{"I16", "a worker has more handlers than it has slots", func(p *past) {
		var list []*tale
		for range 5 {
			list = append(list, sleeper(p, "worker1"))
		}
		for _, j := range list {
			j.succeed()
		}
	}, nil},
}

func TestRemoteWorkerPermittedBehavior(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]func(p *past){
		"a job that never arrived is handed back": func(p *past) {
			p.pass(10 * time.Second)
			j := p.submit("demo.noop", `{}`).take("worker1")
			p.pass(2 * time.Second)
			j.takenBack().claim("pod1").succeed()
		},
		"a job that could not be acknowledged is handed back, and its handler is notified": func(p *past) {
			p.pass(10 * time.Second)
			p.fault("F69", "worker_reset", "worker1", 2*time.Second, func() {
				j := sleeper(p, "worker1")
				p.pass(2 * time.Second)
				j.takenBack()
				p.pass(time.Second)
				j.line("ctx_done", job.ErrLeaseLost.Error()).line("end", job.ErrLeaseLost.Error())
				j.claim("pod1").succeed()
			})
		},
		"a worker is killed, which counts as a crash of its running job": func(p *past) {
			p.pass(10 * time.Second)
			j := sleeper(p, "worker1")
			p.pass(1500 * time.Millisecond)
			p.kill("worker1")
			p.lapse("worker1")
			j.recover().claim("pod1").succeed()
			p.start("worker1")
		},
		"a worker whose pods are gone finds no job": func(p *past) {
			p.submit("demo.progress", `{}`).claim("worker1").succeed()
			p.pass(10 * time.Second)
			p.kill("pod1")
			p.kill("pod2")
			j := p.submit("demo.progress", `{}`)
			p.lapse("pod1")
			p.lapse("pod2")
			p.pass(5 * time.Second)
			p.start("pod1")
			p.start("pod2")
			p.pass(time.Second)
			j.claim("worker1").succeed()
		},
		"a worker that is told to shut down hands back its unfinished jobs": func(p *past) {
			p.pass(10 * time.Second)
			j := sleeper(p, "worker1")
			p.pass(6 * time.Second)
			at := p.step()
			one := p.pods["worker1"].now
			one.TermAt, one.TermsGot, one.StoppedBy = &at, 1, "signal"
			p.pass(3 * time.Second)
			j.takenBack()
			p.podEvent("pod.left", "worker1", p.pods["worker1"].podID)
			p.quiet("worker1")
			one.Ended = p.step()
			j.claim("pod1").succeed()
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			p := uneventful(t)
			live(p)
			for _, f := range Check(p.done()) {
				switch f.Invariant {
				case "I3", "I4", "I5", "I10", "I10b", "I14", "I16":
					for _, v := range f.Violations {
						t.Errorf("%s: %s", f.Invariant, v.What)
					}
				}
			}
		})
	}
}
