package checker

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

const joinOfTwo = `{"n":2,"child":{"kind":"demo.noop","args":{}},"join":{"kind":"demo.noop","args":{}}}`

// uneventful returns a correct run that contains something to check for every invariant.
func uneventful(t *testing.T) *past {
	p := begin(t)
	p.submit("demo.noop", `{}`, key("a")).claim("pod1").succeed()
	p.submit("demo.echo", `{"big":12345678901234567890}`).claim("pod2").succeed()
	p.submit("demo.tx", `{"rows":3}`).claim("pod2").succeed()
	p.submit("demo.fail", `{}`).claim("pod3").fail()
	p.submit("demo.noop", `{}`).claim("worker1").succeed()
	p.submit("demo.effect", `{"n":1}`).claim("pod1").line("effect", "").succeed()

	// These are chains, both declared and requested by a handler.
	p.submit("demo.noop", `{}`, chain(stepOf("demo.sleep", `{"ms":5}`), stepOf("demo.echo", `[1]`))).claim("pod1").hand().hand().succeed()
	p.submit("demo.chain", `{"steps":[{"kind":"demo.noop","args":{}},{"kind":"demo.fail","args":{}}]}`).claim("pod2").hand().hand().fail()
	undone(p).fail().followed().claim("pod1").succeed()

	// This is a fan-out with its join.
	fanned := p.submit("demo.fanout", joinOfTwo).claim("pod1")
	for _, b := range fanned.fanOut() {
		b.claim("pod2").succeed()
	}
	fanned.joined(job.PipelineSucceeded).succeed()

	// Two jobs with the same subject run one after the other.
	a := p.submit("demo.sleep", `{"ms":300}`, subject("s")).claim("pod1")
	b := p.submit("demo.sleep", `{"ms":300}`, subject("s"))
	p.pass(300 * time.Millisecond)
	a.succeed()
	b.claim("pod2").succeed()

	// Two jobs of a key run at the same time, and a third one waits for a place.
	p.limitKey("*", 2)
	c1, c2 := p.submit("demo.noop", `{}`, tenant("k")).claim("pod1"), p.submit("demo.noop", `{}`, tenant("k")).claim("pod2")
	c3 := p.submit("demo.noop", `{}`, tenant("k"))
	p.pass(100 * time.Millisecond)
	c1.succeed()
	c3.claim("pod1").succeed()
	c2.succeed()

	// A lane has a rate, and ordered jobs wait for each other.
	p.setRate(2, 2, history.OK)
	spaced(p, 4, 500*time.Millisecond)
	p.pass(2 * time.Second)
	ordered(p, false, keeps)

	// These jobs are cancelled or stopped.
	p.submit("demo.sleep", `{"ms":5000}`).cancelPending()
	c := p.submit("demo.sleep", `{"ms":5000}`).claim("pod3").askCancel()
	p.pass(500 * time.Millisecond)
	c.line("ctx_done", "cancelled by an operator").cancelled().command("cancel", "cancelled", "", nil).command("stop", "", "already_terminal", nil)
	p.submit("demo.sleep", `{"ms":5000}`).claim("pod3").stop()

	// These jobs are snoozed or delayed.
	p.submit("demo.snooze", `{"times":1,"delay_ms":200}`).claim("pod1").snooze(200 * time.Millisecond).claim("pod2").succeed()
	p.submit("demo.sleep", `{"ms":5}`, delay(time.Second)).promote(time.Second).claim("pod1").succeed()

	// The more urgent job goes first.
	p.operate("narrow", 1, true)
	p.pass(4 * time.Second)
	first := p.submit("demo.sleep", `{"ms":10}`, lane("narrow")).claim("pod1")
	low, high := p.submit("demo.sleep", `{"ms":10}`, lane("narrow"), priority(1)), p.submit("demo.sleep", `{"ms":10}`, lane("narrow"), priority(9))
	p.pass(100 * time.Millisecond)
	first.succeed()
	high.claim("pod1")
	p.pass(10 * time.Millisecond)
	high.succeed()
	low.claim("pod1").succeed()

	p.fires("tick")
	return p
}

// eventful adds faults and their consequences to the uneventful run.
func eventful(t *testing.T) *past {
	p := uneventful(t)
	// A pod is killed, and another pod takes over its job.
	killed := p.submit("demo.sleep", `{"ms":2000}`).claim("pod2")
	p.pass(1200 * time.Millisecond)
	p.fault("F1", "kill", "pod2", 0, func() { p.kill("pod2") })
	p.lapse("pod2")
	killed.recover()
	p.pass(20 * time.Millisecond)
	killed.claim("pod3")
	p.pass(time.Second)
	p.start("pod2")
	p.pass(time.Second)
	killed.succeed()

	// A pod is frozen for longer than its lease. When it wakes up, it learns that its lease was lost, and its result is discarded.
	p.pass(10 * time.Second)
	frozen := p.submit("demo.sleep", `{"ms":8000}`).claim("pod3")
	zombie := *frozen
	p.fault("F2", "freeze", "pod3", 5*time.Second, func() {
		p.quiet("pod3")
		p.lapse("pod3")
		frozen.recover()
		frozen.claim("pod1")
	})
	zombie.line("ctx_done", job.ErrLeaseLost.Error()).line("end", job.ErrLeaseLost.Error())
	frozen.stale(1)
	p.join("pod3")
	frozen.succeed()

	// A pod receives SIGTERM and hands back its unfinished jobs.
	p.pass(15 * time.Second)
	back := p.submit("demo.sleep", `{"ms":6000}`).claim("pod1")
	short := p.submit("demo.sleep", `{"ms":600}`).claim("pod1")
	p.fault("F5", "term", "pod1", 0, nil)
	at := p.step()
	p.pods["pod1"].now.TermAt, p.pods["pod1"].now.TermsGot, p.pods["pod1"].now.StoppedBy = &at, 1, "signal"
	p.pass(500 * time.Millisecond)
	short.succeed()
	p.pass(2500 * time.Millisecond)
	back.line("ctx_done", job.ErrShutdown.Error()).handBack()
	back.claim("pod2")
	p.podEvent("pod.left", "pod1", p.pods["pod1"].podID)
	p.quiet("pod1")
	p.pods["pod1"].now.Ended = p.step()
	p.pass(time.Second)
	p.start("pod1")
	back.succeed()
	p.pass(10 * time.Second)
	return p
}

func TestInvariantsOfCorrectRun(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	findings := Check(eventful(t).done())
	is.Equal(len(findings), len(invariants)) // all invariants are checked
	for i, f := range findings {
		is.Equal(f.Invariant, invariants[i].name) // in the same order
		for _, v := range f.Violations {
			t.Errorf("%s reports a false violation: %s", f.Invariant, v.What)
		}
		if Vacuous(f) {
			t.Errorf("%s had nothing to check", f.Invariant)
		}
	}
}

func TestAnEmptyRunProvesNothing(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, f := range Check(&history.Run{}) {
		is.True(Vacuous(f))            // nothing to check
		is.Equal(len(f.Violations), 0) // and no violation
	}
}
