package checker

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// limit records a change to a lane's slots across all pods and waits until every pod has received it.
func (p *past) limit(slots int) {
	p.limitNow(slots, history.OK)
	p.pass(9 * time.Second)
}

func (p *past) limitNow(slots int, outcome string) {
	p.run.Calls = append(p.run.Calls, history.Call{N: len(p.run.Calls) + 1, Verb: "lane", Lane: "limited", Slots: &slots, Began: p.step(), Ended: p.step(),
		Outcome: outcome})
}

// limited starts a job in the limited lane on each of the given pods.
func limited(p *past, pods ...string) (list []*tale) {
	for _, pod := range pods {
		list = append(list, p.submit("demo.noop", `{}`, lane("limited")).claim(pod))
	}
	return list
}

func succeed(list []*tale) {
	for _, j := range list {
		j.succeed()
	}
}

var fleetCrimes = []crime{
	{"I16", "pods together run more than a lane's slots", func(p *past) {
		p.limit(2)
		succeed(limited(p, "pod1", "pod2", "pod3"))
	}, nil},
	{"I16", "pods together run more than the slots of a lane made from a template", func(p *past) {
		p.limit(1)
		last(p.run.Calls).Lane = "tenant/*"
		for _, pod := range []string{"pod1", "pod2"} {
			p.submit("demo.noop", `{}`, lane("tenant/7")).claim(pod)
		}
	}, nil},
	{"I16", "a single pod runs more than a lane's slots", func(p *past) {
		p.limit(1)
		succeed(limited(p, "pod1", "pod1"))
	}, nil},
	{"I16", "a lane with no slots runs a job", func(p *past) {
		p.limit(0)
		succeed(limited(p, "pod1"))
		p.limit(1)
	}, nil},
	{"I16", "a limit that was lowered a while ago is exceeded", func(p *past) {
		p.limit(3)
		p.limit(1)
		succeed(limited(p, "pod1", "pod2"))
	}, nil},
	{"I16", "a job starts while jobs from before a lowered limit still fill the lane", func(p *past) {
		p.limit(2)
		former := limited(p, "pod1", "pod2")
		p.limit(1)
		former[0].succeed()
		succeed(limited(p, "pod1"))
		former[1].succeed()
	}, nil},
	{"I16", "a step starts on insert in a full lane", func(p *past) {
		p.limit(1)
		chained := p.submit("demo.noop", `{}`, lane("limited"), chain(stepOf("demo.noop", `{}`))).claim("pod1")
		chained = chained.hand()
		succeed(limited(p, "pod2"))
		chained.succeed()
	}, nil},
	{"I16", "the slot of a dead pod is used before its job is taken back", func(p *past) {
		p.limit(1)
		j := limited(p, "pod2")[0]
		p.kill("pod2")
		p.lapse("pod2")
		succeed(limited(p, "pod1"))
		j.recover().claim("pod1").succeed()
	}, nil},
	{"I16", "a disturbed pod uses an outdated limit", func(p *past) {
		p.limit(3)
		p.limit(1)
		p.fault("F23", "blackhole", "pod2", time.Second, func() { succeed(limited(p, "pod1", "pod2")) })
	}, nil},
	{"I16", "samples show too many jobs at once, although claims and ends do not", func(p *past) {
		p.limit(1)
		a := limited(p, "pod1")[0]
		p.pass(time.Second)
		a.succeed()
		b := limited(p, "pod2")[0]
		p.pass(time.Second)
		b.succeed()
	}, func(r *history.Run) {
		for i, s := range r.Samples {
			for _, one := range s.Running {
				if one.Lane == "limited" && i+8 < len(r.Samples) { // as if each job had run a little longer
					r.Samples[i+8].Running = append(r.Samples[i+8].Running, one)
				}
			}
		}
	}},
}

// fleetInnocents lists behavior that is allowed in a limited lane.
var fleetInnocents = []struct {
	name string
	live func(p *past)
}{
	{"as many jobs as slots, all the time", func(p *past) {
		p.limit(2)
		for range 5 {
			list := limited(p, "pod1", "pod2")
			p.pass(200 * time.Millisecond)
			succeed(list)
		}
	}},
	{"no limit at all", func(p *past) { succeed(limited(p, "pod1", "pod2", "pod3")) }},
	{"a raised limit that counts at once", func(p *past) {
		p.limit(1)
		a := limited(p, "pod1")
		p.limitNow(2, history.OK)
		succeed(append(a, limited(p, "pod2")...))
	}},
	{"a limit that may have been raised", func(p *past) {
		p.limit(1)
		p.limitNow(2, history.Unknown)
		p.pass(20 * time.Second)
		succeed(limited(p, "pod1", "pod2"))
		p.limit(1)
	}},
	{"jobs that are running when the limit is lowered", func(p *past) {
		p.limit(3)
		list := limited(p, "pod1", "pod2", "pod3")
		p.limit(1)
		succeed(list)
		succeed(limited(p, "pod1"))
	}},
	{"a claim in flight while the limit is lowered", func(p *past) {
		p.limit(2)
		a := limited(p, "pod1")
		p.limitNow(1, history.OK)
		p.pass(900 * time.Millisecond)
		succeed(append(a, limited(p, "pod2")...))
	}},
	{"a pod that could not learn of the new limit", func(p *past) {
		p.limit(2)
		a := limited(p, "pod1")
		p.fault("F23", "blackhole", "pod2", 2500*time.Millisecond, func() {
			p.limitNow(1, history.OK)
			p.pass(2400 * time.Millisecond)
		})
		p.pass(1500 * time.Millisecond)
		succeed(append(a, limited(p, "pod2")...))
	}},
	{"a step that takes over its parent's slot", func(p *past) {
		p.limit(1)
		p.submit("demo.noop", `{}`, lane("limited"), chain(stepOf("demo.noop", `{}`), stepOf("demo.noop", `{}`))).claim("pod1").hand().hand().succeed()
	}},
	{"the slot of a dead pod after its job was taken back", func(p *past) {
		p.limit(1)
		j := limited(p, "pod2")[0]
		p.kill("pod2")
		p.lapse("pod2")
		j.recover().claim("pod1").succeed()
	}},
	{"a claim that was not visible when its pod was declared dead", func(p *past) {
		p.limit(1)
		j := limited(p, "pod2")[0]
		p.quiet("pod2")
		p.podEvent("pod.lapsed", "pod2", p.pods["pod2"].podID)
		p.fault("F36", "clock_forward", "", time.Second, nil) // explains why the lease expired early
		p.quietly("pod2")
		succeed(limited(p, "pod1"))
		j.recover().claim("pod1").succeed()
		p.join("pod2")
	}},
	{"claims whose reply was lost and that never run", func(p *past) {
		p.limit(1)
		stray := p.submit("demo.noop", `{}`, lane("limited")).take("pod1")
		succeed(limited(p, "pod1"))
		stray.leave("job.handed_back", job.Pending, "system")
		stray.row.Attempt--
		stray.claim("pod1").succeed()
	}},
}

func TestLimitedLanePermittedBehavior(t *testing.T) {
	t.Parallel()
	for _, one := range fleetInnocents {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			p := uneventful(t)
			one.live(p)
			r := p.done()
			for _, f := range Check(r) {
				for _, v := range f.Violations {
					t.Errorf("%s: %s\n%s", f.Invariant, v.What, Timeline(r, v.Job))
				}
			}
		})
	}
}

func TestLimitedLaneEventsAndSamples(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := uneventful(t)
	p.limit(2)
	list := limited(p, "pod1", "pod2")
	p.pass(time.Second)
	succeed(list)
	var f Finding
	look(p.done()).fleetHolds(&f)
	is.Equal(len(f.Violations), 0)
	is.True(f.Checked >= 2+9) // two claims and the samples of one second
}
