package checker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestJobTimelineOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := begin(t)
	now, former := stolen(p)
	former.line("ctx_done", "lease lost").line("end", "lease lost")
	now.command("cancel", "running", "", nil)
	p.pass(time.Second)
	now.succeed()
	text := Timeline(p.done(), now.row.ID)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	is.True(strings.HasPrefix(lines[0], "job 1, demo.sleep"))                                                 // the headline comes first
	is.True(slices.IsSortedFunc(lines[1:], func(a, b string) int { return strings.Compare(a[:12], b[:12]) })) // each line begins with its time
	at := 0
	for _, want := range []string{
		"calls    call 1", "events     1 job.enqueued", "ledger   start fence 1", "faults   F2 freeze pod3 begins", "samples  seen running, fence 1",
		"events   pod3 (id pod3-boo) is declared dead", "events     3 job.recovered", "ledger   start fence 2", "faults   F2 freeze pod3 is healed",
		"ledger   ctx_done fence 1", "call 2 of client 1 to pod1: cancel begins", "events     5 job.succeeded", "samples  no longer seen running, fence 2",
	} {
		next := slices.IndexFunc(lines[at:], func(l string) bool { return strings.Contains(l, want) })
		if next < 0 {
			t.Fatalf("%q is missing, or comes too early:\n%s", want, text)
		}
		at += next
	}
}

func TestTimelineOfUnknownJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	is.Equal(Timeline(&history.Run{}, 0), "") // job 0 has no timeline
	is.Equal(Timeline(&history.Run{}, 7), "") // an unknown job has no timeline either
}

func TestTimelineJSONComparison(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, same := range [][2]string{
		{`{"a":1,"b":[true,null]}`, ` { "b" : [ true , null ] , "a" : 1 } `}, {`"é"`, `"\u00e9"`}, {``, `{}`}, {`12345678901234567890123`, `12345678901234567890123`},
	} {
		is.True(sameJSON([]byte(same[0]), []byte(same[1])))
		is.Equal(canonical([]byte(same[0])), canonical([]byte(same[1]))) // equal values have the same canonical form
	}
	for _, other := range [][2]string{
		{`12345678901234567890123`, `12345678901234567890124`}, {`1`, `1.0`}, {`1e2`, `100`}, {`[1,2]`, `[2,1]`}, {`"1"`, `1`}, {`null`, `{}`}, {`{"a":1}`, `{"a":1,"b":2}`},
	} {
		is.True(!sameJSON([]byte(other[0]), []byte(other[1])))
		is.True(canonical([]byte(other[0])) != canonical([]byte(other[1]))) // different values have different canonical forms
	}
}

func TestLongRunCheckDuration(t *testing.T) {
	t.Parallel()
	p := begin(t)
	for n := range 10_000 { // every tenth job has a second claim
		j := p.submit("demo.sleep", `{"ms":1}`).claim("pod1")
		if n%10 == 0 {
			j.handBack().claim("pod2")
		}
		j.succeed()
	}
	r := p.done()
	began := time.Now()
	for _, f := range Check(r) {
		for _, v := range f.Violations {
			t.Errorf("%s: %s", f.Invariant, v.What)
		}
	}
	if took := time.Since(began); took > 30*time.Second { // generous, because the machine may be busy
		t.Errorf("%d jobs and %d events took %s", len(r.Jobs), len(r.Events), took)
	} else {
		t.Logf("%d jobs and %d events took %s", len(r.Jobs), len(r.Events), took)
	}
}
