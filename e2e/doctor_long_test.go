//go:build long

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestADoctorFindsAStandby(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := patient{database: database{t, primary.AddStandby(t).URL()}}
	is.True(standby.finds("server", failing, "is a standby and accepts no writes"))
	is.True(standby.finds("schema", healthy, ""))
	is.True(standby.finds("api", failing, "accepts no writes"))
}

func TestDoctorFindsBlockedJobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ill    func(p patient)
		check  string
		status health
		says   string
		flags  []string
	}{
		{"a kind without a handler", func(p patient) { p.enqueue("lost.kind") }, "kinds", failing, `"lost.kind": 1 job waits`, nil},
		{"a promoted standby without a pod since", func(p patient) {
			p.exec(`select trapeze.settle_history()`)
			p.exec(`update trapeze.cluster set timeline = timeline + 1`)
		}, "history", warning, "timeline changed", nil},
		{"a standby promoted today", func(p patient) {
			p.exec(`select trapeze.settle_history()`)
			p.exec(`update trapeze.cluster set timeline = timeline + 1`)
			p.exec(`select trapeze.settle_history()`)
		}, "history", warning, "timeline changed", nil},
		{"a standby promoted last week", func(p patient) {
			p.exec(`select trapeze.settle_history()`)
			p.exec(`update trapeze.cluster set epoch = 1, changed_at = now() - interval '7 days'`)
		}, "history", healthy, "as recorded by the pods", nil},
		{"a database whose tables were truncated", func(p patient) { p.exec(`truncate trapeze.cluster`) }, "history", failing, "the table cluster has no row", nil},
		{"a sequence that a restore left behind", func(p patient) {
			p.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id) values (5001, 'k', 'default', '{}', 5001)`)
		}, "ids", failing, "sequence behind ids", nil},
		{"a published table without a replica identity", func(p patient) {
			p.exec(`alter table trapeze.subjects replica identity nothing`)
			p.exec(`create publication p for all tables`)
		}, "replication", failing, "trapeze.subjects is published without a replica identity", nil},
		{"a trigger that the replica role disables", func(p patient) {
			p.exec(`alter table trapeze.done_failed enable trigger follow_failure`)
		}, "triggers", failing, "follow_failure on done_failed", nil},
		{"no pod at all", func(p patient) {}, "pods", failing, "none of 0 open pods", nil},
		{"no live pod", func(p patient) { p.join("web-1", -30) }, "pods", failing, "none of 1 open pod starts jobs", nil},
		{"a pod that starts nothing while nothing is due", func(p patient) {
			p.join("web-1", 600)
			p.exec(`update trapeze.pods set slots = 0`)
		}, "pods", warning, "none of 1 open pod starts jobs: 0 jobs wait", nil},
		{"a pod that starts nothing while a job is due", func(p patient) {
			p.join("web-1", 600, "a.kind")
			p.exec(`update trapeze.pods set drained = true`)
			p.enqueue("a.kind")
		}, "pods", failing, "none of 1 open pod starts jobs: 1 job waits", nil},
		{"a job on a pod that does not know it", func(p patient) { p.runs("web-1", 2, 1, "closed_at = null") },
			"running", failing, "2 jobs are running on web-1", nil},
		{"jobs on a pod that knows them", func(p patient) { p.runs("web-1", 2, 2, "closed_at = null") }, "running", healthy, "", nil},
		{"jobs on a pod of a release that does not report claims", func(p patient) { p.runs("web-1", 2, 0, "known_claims = null") }, "running", healthy, "", nil},
		{"a job on a pod that is gone", func(p patient) { p.runs("web-1", 1, 1, "closed_at = now() - interval '5 minutes', closed = 'lapsed'") },
			"running", failing, "1 job is running on web-1", nil},
		{"a job on a pod that has just gone", func(p patient) { p.runs("web-1", 1, 1, "closed_at = now(), closed = 'lapsed'") }, "running", healthy, "", nil},
		{"a job on a pod without a row", func(p patient) { p.runs("web-1", 1, 1, "id = gen_random_uuid()") }, "running", failing, "1 job is running on", nil},
		{"pods with different leases", func(p patient) {
			p.join("web-1", 8)
			p.join("web-2", 60)
			p.exec(`update trapeze.pods set closed_at = now(), closed = 'lapsed' where name = 'web-2'`)
		}, "pods", warning, "web-2", nil},
		{"a pod that lapses", func(p patient) { p.join("web-1", -30) }, "pods", warning, "web-1", nil},
		{"a remote worker whose stream is gone", func(p patient) {
			p.join("gpu-1", -30)
			p.exec(`insert into trapeze.remote_workers (pod, owner, stream_key) select id, 'gpu', 'a key' from trapeze.pods`)
		}, "pods", warning, "remote worker gpu-1", nil},
		{"a remote worker that repeatedly loses its stream", func(p patient) {
			p.join("gpu-1", 600)
			p.exec(`update trapeze.pods set started_at = now() - interval '2 minutes'`)
			p.exec(`insert into trapeze.remote_workers (pod, owner, stream_key, stream) select id, 'gpu', 'a key', 50 from trapeze.pods`)
		}, "pods", warning, "it opened 50 in 2m", nil},
		{"healthy pods and remote workers", func(p patient) {
			p.join("web-1", 600)
			p.join("gpu-1", 600)
			p.exec(`insert into trapeze.remote_workers (pod, owner, stream_key) select id, 'gpu', 'a key' from trapeze.pods where name = 'gpu-1'`)
		}, "pods", healthy, "1 pod and 1 remote worker start jobs", nil},
		{"a drained pod", func(p patient) {
			p.join("web-1", 600)
			p.exec(`update trapeze.pods set drained = true`)
		}, "pods", warning, "web-1", nil},
		{"a limit of a lane that does not exist", func(p patient) {
			p.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'gone', 'a', 1)`)
		}, "keys", warning, "1 limit has no effect on jobs of lane gone: it does not exist", nil},
		{"limits of a kind that no pod handles", func(p patient) {
			p.join("web-1", 600, "a.kind")
			p.exec(`insert into trapeze.limits (scope, name, key, slots) values ('kind', 'b.kind', 'a', 1), ('kind', 'b.kind', '*', 1), ('kind', 'a.kind', '*', 1)`)
		}, "keys", warning, "2 limits have no effect on jobs of kind b.kind: no pod handles it", nil},
		{"a drained lane with a job", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.lanes set drained = true`)
		}, "lanes", warning, "lane default is drained: 1 job waits", nil},
		{"a drained lane with an old job", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.lanes set drained = true`)
		}, "lanes", failing, "lane default is drained", []string{"--overdue", "0s"}},
		{"a disabled lane with a job", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.lanes set enabled = false`)
		}, "lanes", warning, "is disabled", nil},
		{"a pause", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.queue_state set paused = true`)
		}, "lanes", warning, "is paused", nil},
		{"a freeze", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.queue_state set frozen = true`)
		}, "lanes", warning, "is frozen", nil},
		{"a lane without slots", func(p patient) { p.exec(`update trapeze.lanes set slots = 0`) }, "lanes", warning, "has 0 slots", nil},
		{"a lane whose kinds no pod handles", func(p patient) {
			p.join("web-1", 600, "another.kind")
			p.exec(`insert into trapeze.lanes (name) values ('slow')`)
			p.exec(`insert into trapeze.lane_kinds values ('report', 'slow')`)
		}, "lanes", warning, "the kinds of lane slow: report", nil},
		{"a job that has been due for a long time", func(p patient) {
			p.join("web-1", 600, "a.kind")
			p.enqueue("a.kind")
		}, "lanes", warning, "lane default: 1 job waits, the oldest due for", []string{"--overdue", "0s"}},
		{"a schedule that cannot fire", func(p patient) { p.schedule("a.kind", `error = 'expression "x" has one field'`) },
			"schedules", failing, "nightly does not fire: expression", nil},
		{"a schedule whose kind no pod handles", func(p patient) { p.schedule("lost.kind", `next_at = now() + interval '1 hour'`) },
			"schedules", failing, `nightly: no live pod runs "lost.kind"`, nil},
		{"an overdue schedule", func(p patient) { p.schedule("a.kind", `next_at = now() - interval '2 minutes'`) },
			"schedules", failing, "nightly has been due for 2m", nil},
		{"a schedule that no pod has planned", func(p patient) { p.schedule("a.kind", `planned = false, updated_at = now() - interval '2 minutes'`) },
			"schedules", failing, "nightly has been due for 2m", nil},
		{"a schedule whose lane is gone", func(p patient) { p.schedule("a.kind", `lane = 'slow', next_at = now() + interval '1 hour'`) },
			"schedules", failing, `nightly names the lane "slow"`, nil},
		{"a schedule that is planned beyond its next occurrences", func(p patient) { p.schedule("a.kind", `next_at = now() + interval '3 days'`) },
			"schedules", failing, "nightly fires next at", nil},
		{"an interval schedule that is planned beyond its next occurrences", func(p patient) {
			p.schedule("a.kind", `expression = '@every 1h', zone = 'Europe/Zurich'`) // a new expression resets the planned column
			p.exec(`update trapeze.schedules set planned = true, next_at = now() + interval '62 minutes'`)
		}, "schedules", failing, "skips the earlier occurrences of its expression", nil},
		{"a paused schedule", func(p patient) { p.schedule("lost.kind", `paused = true`) },
			"schedules", healthy, "1 schedule, 1 paused", nil},
		{"a schedule that is slightly late", func(p patient) { p.schedule("a.kind", `next_at = now() - interval '5 seconds'`) },
			"schedules", healthy, "1 schedule, 0 paused", nil},
		{"a missing partition", func(p patient) {
			p.exec(fmt.Sprintf(`drop table trapeze.done_failed_%s`, time.Now().UTC().Format("20060102")))
		}, "partitions", warning, "done_failed", nil},
		{"a missing migration", func(p patient) { p.ok("migrate", "down", "--to", "7") }, "schema", failing, "at version 7", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p := newPatient(t)
			c.ill(p)
			is.True(p.finds(c.check, c.status, c.says, c.flags...)) // doctor finds the problem and names a remedy
		})
	}
}

// runs inserts jobs that have been running for ten minutes on a pod that reports the given number of known claims. set is the SET clause of
// a final update to the pod's row.
func (p patient) runs(name string, jobs, known int, set string) {
	p.t.Helper()
	p.join(name, 600, "a.kind")
	for range jobs {
		p.enqueue("a.kind")
	}
	p.exec(`update trapeze.live set state = 'running', pod = (select id from trapeze.pods), fence = 1, attempt = 1, claimed_at = now() - interval '10 minutes'`)
	p.exec(`update trapeze.pods set known_claims = $1`, known)
	p.exec(`update trapeze.pods set ` + set)
}

// schedule inserts a planned schedule and a pod that handles a.kind. set is the SET clause of a final update to the schedule's row.
func (p patient) schedule(kind, set string) {
	p.t.Helper()
	p.join("web-1", 600, "a.kind")
	p.exec(`insert into trapeze.schedules (name, expression, kind, planned) values ('nightly', '30 2 * * *', $1, true)`, kind)
	p.exec(`update trapeze.schedules set ` + set)
}
