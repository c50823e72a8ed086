//go:build long

package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// pair is a database and a server that uses it.
type pair struct {
	t      *testing.T
	db     database
	server string
}

func newPair(t *testing.T) pair {
	db := database{t, pgtest.URL(t)}
	return pair{t, db, serve(t, db.url, nil).HTTP}
}

// reads runs a read-only command directly and through the server, and requires both outputs to be equal.
func (p pair) reads(args ...string) string {
	p.t.Helper()
	got := bothWays(p.t, p.db, p.server, args...)
	if got.code != 0 {
		p.t.Fatalf("trapeze %v: exit code %d: %s", args, got.code, got.err)
	}
	return got.out
}

// moving runs a command only through the server, because its output contains heartbeat times that change between runs.
func (p pair) moving(args ...string) string {
	p.t.Helper()
	got := through(p.t, p.server, args...)
	if got.code != 0 {
		p.t.Fatalf("trapeze %v: exit code %d: %s", args, got.code, got.err)
	}
	return got.out
}

// does runs a command on one object through the server, and directly on a similar object. IT in args is replaced with the object's name.
// Apart from the names, the outputs must be equal.
func (p pair) does(there, here string, args ...string) result {
	p.t.Helper()
	is := is.New(p.t)
	put := func(thing string) []string {
		return strings.Split(strings.ReplaceAll(strings.Join(args, "\x00"), "IT", thing), "\x00")
	}
	take := func(s result, thing string) result {
		name := regexp.MustCompile(`\b` + thing + `\b`)
		return result{name.ReplaceAllString(s.out, "IT"), name.ReplaceAllString(s.err, "IT"), s.code}
	}
	far, near := take(through(p.t, p.server, put(there)...), there), take(p.db.run(put(here)...), here)
	is.Equal(far, near) // the same output, error and exit code
	return near
}

func TestJobCommandsThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPair(t)
	p.db.enqueue("demo.noop") // uses up ID 1, which is easily confused with other numbers
	two := func(args ...string) (there, here string) { return p.db.enqueue(args...), p.db.enqueue(args...) }
	state := func(id string, want job.State) {
		t.Helper()
		p.db.inState(id, want)
	}

	a, b := two("demo.noop", "--delay", "1h")
	is.Equal(p.does(a, b, "nice", "IT", "77").code, 0)
	is.Equal(p.does(a, b, "nice", "IT", "1", "--json").code, 0)
	is.Equal(p.does(a, b, "kill", "IT", "--json").code, 0)
	is.Equal(p.does(a, b, "nice", "IT", "1").code, 1) // the job has ended
	is.Equal(p.does(a, b, "retry", "IT").code, 0)     // a cancelled job can be retried

	a, b = two("demo.fail", "--args", `{"message":"broken"}`)
	state(a, job.Failed)
	state(b, job.Failed)
	is.Equal(p.does(a, b, "retry", "IT", "--args", `{"message":"again"}`, "--json").code, 0)
	is.Equal(p.does(a, b, "complete", "IT", "--token", "none").code, 1)

	a, b = two("demo.noop", "--needs-approval")
	is.Equal(p.does(a, b, "retry", "IT").code, 1) // the job has not failed
	is.Equal(p.does(a, b, "approve", "IT").code, 0)
	state(a, job.Succeeded)
	state(b, job.Succeeded)
	is.Equal(p.does(a, b, "approve", "IT").code, 1)
	is.Equal(p.does("999998", "999999", "approve", "IT").code, 1)

	for _, subject := range []string{"far", "near", "far", "near"} {
		p.db.enqueue("demo.noop", "--delay", "1h", "--subject", subject)
	}
	dry := func(args ...string) { // each side has two jobs with different IDs
		t.Helper()
		many := func(s result) (m struct{ Matched, Changed int }) {
			is.Equal(s.code, 0)
			return decoded[struct{ Matched, Changed int }](t, s.out)
		}
		is.Equal(many(through(t, p.server, append(args, "--subject", "far", "--json")...)), many(p.db.run(append(args, "--subject", "near", "--json")...)))
	}
	dry("kill", "--dry-run")
	is.Equal(p.does("far", "near", "kill", "--subject", "IT").out, "2 jobs cancelled\n")
	is.Equal(p.does("far", "near", "kill", "--subject", "IT", "-n").out, "no job would be cancelled\n")
	dry("retry", "--dry-run", "--state", "cancelled")
	is.Equal(p.does("far", "near", "retry", "--subject", "IT", "--state", "cancelled").out, "2 jobs retried\n")
	is.Equal(p.does("far", "near", "kill", "--subject", "IT", "--state", "happy").code, 2)
	is.Equal(p.does("far", "near", "retry", "--subject", "IT", "--state", "running").code, 2)
	p.reads("audit", "--json")
	is.True(strings.Contains(p.reads("audit", "--action", "job.cancel"), "job.cancel"))
}

func TestPipelineCommandsThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPair(t)
	p.db.enqueue("demo.noop") // uses up ID 1
	made := func(kind, next string) string {
		return p.db.enqueue(kind, "--chain", `[{"kind":"`+next+`"}]`)
	}
	status := func(id, want string) {
		t.Helper()
		pgtest.Wait(t, "the pipeline is "+want, func() bool {
			return decoded[job.Pipeline](t, p.db.ok("pipeline", id, "--json")).Status == job.Status(want)
		})
	}
	a, b := made("demo.noop", "demo.fail"), made("demo.noop", "demo.fail")
	status(a, "failed")
	status(b, "failed")
	p.reads("pipelines", "--status", "failed", "--json")
	p.reads("pipeline", a)
	p.reads("pipeline", a, "--json")
	is.Equal(bothWays(t, p.db, p.server, "pipeline", "999999").code, 1)
	is.Equal(p.does(a, b, "cancel-pipeline", "IT").code, 1) // the pipeline has already finished
	far, near := through(t, p.server, "pipeline", "retry", a), p.db.run("pipeline", "retry", b)
	is.Equal([]int{far.code, near.code}, []int{0, 0})
	is.Equal(len(strings.Fields(far.out)), len(strings.Fields(near.out)))

	p.db.ok("freeze")
	a, b = made("demo.noop", "demo.echo"), made("demo.noop", "demo.echo")
	is.Equal(p.does(a, b, "cancel-pipeline", "IT").code, 0)
	status(a, "cancelled")
	status(b, "cancelled")
}

func TestLaneCommandsThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPair(t)
	a, b := "far", "near"
	is.Equal(p.does(a, b, "lane", "set", "IT", "slots=3", "max_age_s=1h", "--dry-run").code, 0)
	is.Equal(p.does(a, b, "lane", "set", "IT", "slots=3", "max_age_s=1h").code, 0)
	is.Equal(p.does(a, b, "lane", "set", "IT", "slots=4", "kinds=kind.IT", "--json").code, 0)
	is.Equal(p.does(a, b, "lane", "set", "unmade-IT", "slots=-1").code, 2)
	p.reads("lanes")
	p.reads("lanes", "--json")
	is.Equal(p.does(a, b, "limit", "set", "--lane", "IT", "--slots", "3", "--json").code, 0)
	is.Equal(p.does(a, b, "limit", "set", "--lane", "IT", "--weight", "2").code, 0)
	is.Equal(p.does(a, b, "limit", "rm", "--lane", "IT").code, 0)
	is.Equal(p.does(a, b, "limit", "set", "--lane", "unmade-IT", "--slots", "3").code, 1)
	p.reads("limit", "ls")
	p.reads("limit", "usage")
	is.Equal(p.does(a, b, "drain", "IT", "--wait", "10s", "--json").code, 0)
	is.Equal(p.does(a, b, "drain", "IT", "--wait", "10s").code, 0)
	is.Equal(p.does(a, b, "undrain", "IT").code, 0)
	is.Equal(p.does(a, b, "undrain", "IT", "--json").code, 0) // the lane is already open
	is.Equal(p.does(a, b, "drain", "unmade-IT").code, 1)      // the lane does not exist
	is.Equal(p.does(a, b, "lane", "rm", "IT", "--move-to", "default").code, 0)
	is.Equal(p.does(a, b, "lane", "rm", "IT").code, 1)
	is.Equal(bothWays(t, p.db, p.server, "lane", "rm", "default").code, 2) // the default lane cannot be deleted
	is.Equal(bothWays(t, p.db, p.server, "drain", "--pod", "nobody").code, 1)

	for _, end := range []string{"", "--json"} {
		is.Equal(p.does(a, b, strings.Fields("retention set IT/kind failed 90d "+end)...).code, 0) // deleted again below
		is.Equal(p.reads("retention", "ls"), p.reads("retention", "ls"))
		is.Equal(p.does(a, b, strings.Fields("retention rm IT/kind failed "+end)...).code, 0)
	}
	is.Equal(p.does(a, b, "retention", "set", "IT", "succeeded", "forever").code, 0)
	is.True(strings.Contains(p.reads("retention", "ls"), "forever"))
	for _, wrong := range [][]string{{"set", "IT", "running", "90d"}, {"set", "IT", "failed", "soon"}, {"set", "IT", "failed", "0s"}, {"rm", "IT", "none"}} {
		is.Equal(bothWays(t, p.db, p.server, append([]string{"retention"}, wrong...)...).code, 2)
	}

	pod := decoded[job.Pod](t, p.moving("pods", "--json")).Name
	for _, c := range []struct{ shut, open []string }{
		{[]string{"drain", "--pod", pod, "--wait", "10s"}, []string{"undrain", "--pod", pod}},
		{[]string{"freeze", "--wait", "10s"}, []string{"unfreeze"}},
		{[]string{"pause"}, []string{"resume"}},
	} {
		far := []result{through(t, p.server, c.shut...), through(t, p.server, c.shut...)}
		shown := p.reads("ps") // while the pod or the queue is closed
		is.Equal(strings.Contains(shown, "No job starts: the queue is"), c.shut[0] != "drain")
		far = append(far, through(t, p.server, c.open...), through(t, p.server, c.open...))
		near := []result{p.db.run(c.shut...), p.db.run(c.shut...), p.db.run(c.open...), p.db.run(c.open...)}
		is.Equal(far, near) // repeating a command has no further effect
		is.Equal(near[0].code, 0)
		is.Equal(near[2].code, 0)
	}
	id := p.db.enqueue("demo.sleep", "--args", `{"ms":600000}`)
	p.db.inState(id, job.Running)
	is.True(strings.Contains(p.reads("job", id), "pod            "+pod+" (id ")) // the pod is shown by name
	now := decoded[job.Fleet](t, p.moving("ps", "--json"))
	is.Equal(len(now.Running), 1)
	is.Equal([]any{now.Running[0].Pod, now.Queue, len(now.Lanes), len(now.Pods)}, []any{pod, job.QueueState{}, 1, 1})
	p.reads("audit", "--target", "queue_state", "--json")
}

func TestScheduleCommandsThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPair(t)
	p.db.enqueue("demo.noop") // uses up ID 1, which is easily confused with other numbers
	a, b := "far", "near"
	set := []string{"cron", "set", "IT", "0 0 1 1 *", "demo.echo", "--args", `{"a":"<b>"}`, "--zone", "Europe/Zurich"}
	is.Equal(p.does(a, b, append(set, "--dry-run")...).code, 0)
	is.Equal(p.does(a, b, append(set, "--dry-run", "--json")...).code, 0)
	is.Equal(p.does(a, b, set...).code, 0)
	is.Equal(p.does(a, b, set...).code, 0) // no change
	is.Equal(p.does(a, b, "cron", "set", "IT", "--overlap", "skip", "--json").code, 0)
	is.Equal(p.does(a, b, "cron", "set", "IT", "0 0 1 1 *", "another.programs").code, 0) // kinds that no pod handles are accepted
	is.Equal(p.does(a, b, "cron", "set", "IT", "x").code, 2)
	is.Equal(p.does(a, b, "cron", "set", "IT", "--lane", "nowhere").code, 1)
	is.Equal(p.does(a, b, "cron", "set", "unmade-IT", "--zone", "UTC").code, 1)
	is.Equal(p.does(a, b, "cron", "set", "not IT", "@daily", "demo.echo").code, 2)
	for _, command := range []string{"pause", "pause", "resume"} {
		is.Equal(p.does(a, b, "cron", command, "IT").code, 0)
	}
	is.Equal(p.does(a, b, "cron", "resume", "IT", "--json").code, 0)
	for _, command := range []string{"show", "occurrences", "pause", "trigger", "rm"} {
		is.Equal(p.does(a, b, "cron", command, "unmade-IT").code, 1)
	}
	far, near := through(t, p.server, "cron", "trigger", a), p.db.run("cron", "trigger", b)
	is.Equal([]int{far.code, near.code}, []int{0, 0})
	is.True(p.db.job(strings.TrimSpace(far.out)).Kind == p.db.job(strings.TrimSpace(near.out)).Kind)
	p.reads("cron", "ls", "--json")
	for _, name := range []string{a, b} {
		p.reads("cron", "show", name, "--json")
		p.reads("cron", "occurrences", name)
		p.reads("cron", "occurrences", name, "--json")
	}
	is.Equal(p.does(a, b, "cron", "rm", "IT").code, 0)
	is.Equal(p.does(a, b, "cron", "rm", "IT").code, 1)
	p.reads("audit", "--action", "schedule.delete", "--json")
}
