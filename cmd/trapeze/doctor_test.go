package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// patient is a database that the doctor command examines.
type patient struct {
	database
	pool *pgxpool.Pool
}

func newPatient(t *testing.T) patient {
	t.Helper()
	url := pgtest.URL(t)
	return patient{database{t, url}, pgtest.Connect(t, url)}
}

func (p patient) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

// join inserts a pod whose lease expires after the given number of seconds.
func (p patient) join(name string, seconds int, kinds ...string) {
	p.t.Helper()
	if kinds == nil {
		kinds = []string{}
	}
	p.exec(`insert into trapeze.pods (boot, name, kinds, slots, lease_until) values (gen_random_uuid(), $1, $2, 4, now() + $3::int * interval '1 second')`,
		name, kinds, seconds)
}

// runs inserts jobs that have been running for ten minutes on a pod that reports the given number of known claims. set is the SET clause
// of a final update of the pod's row.
func (p patient) runs(name string, jobs, known int, set string) {
	p.t.Helper()
	p.join(name, 600, "a.kind")
	for range jobs {
		p.enqueue("a.kind")
	}
	p.exec(`update trapeze.live set state = 'running', pod = (select boot from trapeze.pods), fence = 1, attempt = 1, claimed_at = now() - interval '10 minutes'`)
	p.exec(`update trapeze.pods set known_claims = $1`, known)
	p.exec(`update trapeze.pods set ` + set)
}

// schedule inserts a planned schedule, and a pod that handles a.kind. set is the SET clause of a final update of the schedule's row.
func (p patient) schedule(kind, set string) {
	p.t.Helper()
	p.join("web-1", 600, "a.kind")
	p.exec(`insert into trapeze.schedules (name, expression, kind, planned) values ('nightly', '30 2 * * *', $1, true)`, kind)
	p.exec(`update trapeze.schedules set ` + set)
}

// finding is a finding of doctor, as printed by --json.
type finding struct {
	Check, Says, Do string
	Status          health
}

type health string

const (
	healthy health = "ok"
	warning health = "warn"
	failing health = "fail"
)

// finds runs doctor and reports whether a check has a finding with the given status and text.
func (p patient) finds(check string, status health, says string, flags ...string) bool {
	p.t.Helper()
	said := p.run(append([]string{"doctor", "--json"}, flags...)...)
	answer := decoded[struct {
		OK       bool
		Findings []finding
	}](p.t, said.out)
	fails := slices.ContainsFunc(answer.Findings, func(f finding) bool { return f.Status == failing })
	if answer.OK == fails || (said.code == 1) != fails || said.code > 1 {
		p.t.Fatalf("exit code %d, ok %v: %s%s", said.code, answer.OK, said.out, said.err)
	}
	found := slices.ContainsFunc(answer.Findings, func(f finding) bool {
		return f.Check == check && f.Status == status && strings.Contains(f.Says, says) && (status == healthy || f.Do != "")
	})
	if !found {
		p.t.Logf("no %s of %s that says %q in %s", status, check, says, said.out)
	}
	return found
}

func TestADoctorFindsNothingWrongWithAHealthyDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.join("web-1", 600, "a.kind")
	said := p.run("doctor", "--transactions", "24h")
	is.Equal(said.code, 0) // no check fails
	for _, check := range []string{"server", "durability", "connections", "clock", "notify", "horizon", "schema", "history", "ids", "tables", "partitions", "pods", "running", "lanes", "schedules"} {
		is.True(strings.Contains(said.out, "ok    "+check)) // the check ran and found no problem
	}
	for line := range strings.Lines(said.out) {
		is.True(len([]rune(strings.TrimSuffix(line, "\n"))) <= 100) // fits a terminal window
	}
}

func TestADoctorFindsWhatKeepsJobsFromRunning(t *testing.T) {
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
		{"a sequence that a restore left behind", func(p patient) {
			p.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id) values (5001, 'k', 'default', '{}', 5001)`)
		}, "ids", failing, "sequence behind ids", nil},
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
		{"a job on a pod without a row", func(p patient) { p.runs("web-1", 1, 1, "boot = gen_random_uuid()") }, "running", failing, "1 job is running on", nil},
		{"pods with different leases", func(p patient) {
			p.join("web-1", 8)
			p.join("web-2", 60)
			p.exec(`update trapeze.pods set closed_at = now(), closed = 'lapsed' where name = 'web-2'`)
		}, "pods", warning, "web-2", nil},
		{"a pod that lapses", func(p patient) { p.join("web-1", -30) }, "pods", warning, "web-1", nil},
		{"a remote worker whose stream is gone", func(p patient) {
			p.join("gpu-1", -30)
			p.exec(`insert into trapeze.remote_workers (boot, owner, stream_key) select boot, 'gpu', 'a key' from trapeze.pods`)
		}, "pods", warning, "remote worker gpu-1", nil},
		{"a remote worker that repeatedly loses its stream", func(p patient) {
			p.join("gpu-1", 600)
			p.exec(`update trapeze.pods set started_at = now() - interval '2 minutes'`)
			p.exec(`insert into trapeze.remote_workers (boot, owner, stream_key, stream) select boot, 'gpu', 'a key', 50 from trapeze.pods`)
		}, "pods", warning, "it opened 50 in 2m", nil},
		{"healthy pods and remote workers", func(p patient) {
			p.join("web-1", 600)
			p.join("gpu-1", 600)
			p.exec(`insert into trapeze.remote_workers (boot, owner, stream_key) select boot, 'gpu', 'a key' from trapeze.pods where name = 'gpu-1'`)
		}, "pods", healthy, "1 pod and 1 remote worker start jobs", nil},
		{"a drained pod", func(p patient) {
			p.join("web-1", 600)
			p.exec(`update trapeze.pods set drained = true`)
		}, "pods", warning, "web-1", nil},
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
			p.exec(`update trapeze.gate set paused = true`)
		}, "lanes", warning, "is paused", nil},
		{"a freeze", func(p patient) {
			p.enqueue("a.kind")
			p.exec(`update trapeze.gate set frozen = true`)
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
		{"a schedule that is planned beyond its next fires", func(p patient) { p.schedule("a.kind", `next_at = now() + interval '3 days'`) },
			"schedules", failing, "nightly fires next at", nil},
		{"an interval schedule that is planned beyond its next fires", func(p patient) {
			p.schedule("a.kind", `expression = '@every 1h', zone = 'Europe/Zurich'`) // a new expression resets the planned column
			p.exec(`update trapeze.schedules set planned = true, next_at = now() + interval '62 minutes'`)
		}, "schedules", failing, "skips the earlier occurrences of its expression", nil},
		{"a paused schedule", func(p patient) { p.schedule("lost.kind", `paused = true`) },
			"schedules", healthy, "1 schedule, 1 paused", nil},
		{"a schedule that is slightly late", func(p patient) { p.schedule("a.kind", `next_at = now() - interval '5 seconds'`) },
			"schedules", healthy, "1 schedule, 0 paused", nil},
		{"a missing partition", func(p patient) {
			p.exec(fmt.Sprintf(`drop table trapeze.done_failed_%s`, time.Now().UTC().Format("20060102")))
		}, "partitions", failing, "done_failed", nil},
		{"a missing migration", func(p patient) { p.ok("migrate", "down", "--to", "12") }, "schema", failing, "at version 12", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p := newPatient(t)
			c.ill(p)
			is.True(p.finds(c.check, c.status, c.says, c.flags...)) // the problem is found, and the finding names a remedy
		})
	}
}

func TestADoctorFindsWhatHoldsBackTheHorizon(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	tx, err := p.pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	var pid int
	is.NoErr(tx.QueryRow(t.Context(), `select pg_backend_pid() from (select pg_current_xact_id()) held`).Scan(&pid))
	is.True(p.finds("horizon", failing, fmt.Sprintf("process %d (", pid), "--transactions", "0s")) // identified by its process ID
	is.True(p.finds("horizon", failing, "idle in transaction", "--transactions", "0s"))
}

func TestADoctorFindsTablesThatAutovacuumDoesNotKeepUpWith(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`alter table trapeze.parked set (autovacuum_enabled = false)`)
	is.True(p.finds("tables", failing, "autovacuum is disabled for trapeze.parked"))

	// The result does not depend on autovacuum, which may not remove rows that an open snapshot can see.
	p.exec(`alter table trapeze.parked reset (autovacuum_enabled)`)
	p.exec(`insert into trapeze.parked (id, why, event_no, priority, lane, kind, subject)
		select n, 'approval', 1, 10, 'default', 'a.kind', '' from generate_series(1, 12000) n`)
	held, err := p.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	is.NoErr(err)
	defer func() { _ = held.Rollback(t.Context()) }()
	_, err = held.Exec(t.Context(), `select 1`)
	is.NoErr(err)
	p.exec(`delete from trapeze.parked`)
	p.pool.Reset() // a session that ends reports its statistics, which an idle one may delay by ten seconds
	pgtest.Wait(t, "the statistics show the dead rows", func() bool { return p.finds("tables", warning, "trapeze.parked has 12000 dead rows") })
}

func TestADoctorFindsMaintenanceThatIsLateOrFails(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.join("web-1", 60, "k")
	is.True(p.finds("maintenance", healthy, "0 maintenance tasks are on time"))
	p.exec(`insert into trapeze.maintenance (chore, begun_at, done_at, pod) values ('retention', now() - interval '9 hours', now() - interval '9 hours', 'web-1')`)
	is.True(p.finds("maintenance", warning, "retention (9h"))
	p.exec(`update trapeze.maintenance set done_at = now(), error = 'permission denied'`)
	is.True(p.finds("maintenance", warning, "failed on web-1: permission denied"))
}

func TestADoctorFindsAServerThatForgets(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`)
	is.True(p.finds("durability", failing, "synchronous_commit is off"))
}

func TestADoctorHearsWhetherNotificationsArrive(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	is.True(p.finds("notify", healthy, "arrived after"))
	deaf := trapeze(t, []string{"DATABASE_URL=" + p.url, "TRAPEZE_DATABASE_DIRECT_URL=off"}, "doctor")
	is.True(strings.Contains(deaf.out, "pods only poll"))
	elsewhere := trapeze(t, []string{"DATABASE_URL=" + p.url, "TRAPEZE_DATABASE_DIRECT_URL=" + pgtest.EmptyURL(t)}, "doctor")
	is.Equal(elsewhere.code, 1)
	is.True(strings.Contains(elsewhere.out, "a notification did not arrive")) // the direct URL points to a different database
	is.Equal(trapeze(t, []string{"DATABASE_URL=postgres://app@127.0.0.1:1/app"}, "doctor").code, 3)
}

func TestADoctorCountsConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	is.True(p.finds("connections", healthy, "up to 10 (6 for itself, 4 in the host's pool)"))
	scarce := database{t, pgtest.WithParameter(p.url, "pool_max_conns=500")}
	said := scarce.run("doctor")
	is.True(strings.Contains(said.out, "one more pod may be refused"))
}

func TestADoctorFindsProducersWithTheRightsOfASuperuser(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	role, _ := pgtest.Role(t, p.url)
	is.True(!p.finds("producers", warning, "superuser")) // no role may execute the function yet
	p.exec(`grant execute on function trapeze.enqueue to ` + role)
	is.True(p.finds("producers", warning, "superuser"))
	p.exec(`grant create on schema trapeze to ` + role)
	p.exec(`alter function trapeze.enqueue owner to ` + role)
	is.True(!p.finds("producers", warning, "superuser"))
}

func TestADoctorProposesLimitsWhereThereAreNone(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	limits := func(env ...string) (says string) {
		t.Helper()
		var answer struct {
			Findings []struct{ Check, Status, Says, Do string }
		}
		is.NoErr(json.Unmarshal([]byte(trapeze(t, append(env, "DATABASE_URL="+db.url), "doctor", "--json").out), &answer))
		for _, f := range answer.Findings {
			if f.Check == "limits" {
				is.Equal(f.Status, "ok")
				says += f.Says
			}
		}
		return says
	}
	is.Equal(limits(), "jobs of 1 lane have no maximum age; jobs can await approval forever")
	is.True(strings.HasPrefix(limits("TRAPEZE_MAX_AGE=24h", "TRAPEZE_APPROVAL_TTL=24h"), "no job waits forever"))
	db.ok("lane", "set", "default", "max_age_s=0") // 0 means no limit, whatever the pods' own setting
	is.Equal(limits("TRAPEZE_MAX_AGE=24h", "TRAPEZE_APPROVAL_TTL=24h"), "jobs of 1 lane have no maximum age")
	db.ok("lane", "set", "default", "max_age_s=24h")
	is.Equal(limits(), "jobs can await approval forever")
}

func TestADoctorExaminesThroughAServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, []string{"TRAPEZE_MAX_AGE=24h"})
	db.enqueue("lost.kind")
	examined := func(said said) (findings []finding) {
		t.Helper()
		is.Equal(said.code, 1) // no pod handles the kind
		return decoded[struct{ Findings []finding }](t, said.out).Findings
	}
	there, here := examined(through(t, pod.HTTP, "doctor", "--json")), examined(db.run("doctor", "--json"))
	here = slices.DeleteFunc(here, func(f finding) bool { return slices.Contains([]string{"server", "notify", "schema"}, f.Check) }) // checks that need DATABASE_URL
	is.Equal(len(there), len(here))
	for i, f := range there {
		is.Equal(f.Check, here[i].Check) // the order is the same
		is.Equal(f.Status, here[i].Status)
		if f.Check == "limits" {
			is.Equal(f.Says, "jobs can await approval forever") // the pod's own settings apply
			continue
		}
		is.Equal(f.Do, here[i].Do)
	}
	strict := through(t, pod.HTTP, "doctor", "--transactions", "90m", "--overdue", "0s")
	is.True(strings.Contains(strict.out, "no transaction is older than 1h30m0s"))
	is.True(strings.Contains(strict.out, "lane default: 1 job waits"))
	is.Equal(through(t, "http://127.0.0.1:1", "doctor").code, 3) // the same exit code as for other commands
	is.Equal(trapeze(t, nil, "doctor").code, 2)                  // neither a database nor a server
}

func TestADoctorMakesItsOwnChecksWithoutAnAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`alter table trapeze.roles rename to elsewhere`) // the API cannot read the caller's permissions
	is.True(p.finds("api", failing, "the other checks did not run"))
	for _, check := range []string{"server", "notify", "schema"} {
		is.True(p.finds(check, healthy, ""))
	}
}
