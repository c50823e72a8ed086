package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// patient is a database examined by the doctor command.
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
	pgtest.Exec(p.t, p.pool, sql, args...)
}

// join inserts a pod whose lease expires after the given number of seconds.
func (p patient) join(name string, seconds int, kinds ...string) {
	p.t.Helper()
	if kinds == nil {
		kinds = []string{}
	}
	p.exec(`insert into trapeze.pods (id, name, kinds, slots, lease_until) values (gen_random_uuid(), $1, $2, 4, now() + $3::int * interval '1 second')`,
		name, kinds, seconds)
}

// finding is a finding of doctor as printed by --json.
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

// finds runs doctor and reports whether the given check has a finding with this status and text.
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

func TestDoctorHealthyDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	pgtest.AllDays(t, p.pool)
	p.join("web-1", 600, "a.kind")
	said := p.run("doctor", "--transactions", "24h")
	is.Equal(said.code, 0) // no check fails
	for _, check := range []string{"server", "durability", "connections", "clock", "notify", "horizon", "schema", "history", "ids", "tables", "partitions", "pods", "running", "lanes", "schedules"} {
		is.True(strings.Contains(said.out, "ok    "+check)) // the check ran without finding a problem
	}
	for line := range strings.Lines(said.out) {
		is.True(len([]rune(strings.TrimSuffix(line, "\n"))) <= 100) // fits a terminal window
	}
}

func TestDoctorHeldBackHorizon(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	tx, err := p.pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	var pid int
	is.NoErr(tx.QueryRow(t.Context(), `select pg_backend_pid() from (select pg_current_xact_id()) held`).Scan(&pid))
	// The check names the five oldest transactions of the whole server, which other tests use too.
	held := fmt.Sprintf("process %d (", pid)
	pgtest.Wait(t, "the check names the transaction by its process ID", func() bool { return p.finds("horizon", failing, held, "--transactions", "0s") })
	is.True(p.finds("horizon", failing, "idle in transaction", "--transactions", "0s"))
}

func TestDoctorLaggingAutovacuum(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`alter table trapeze.parked set (autovacuum_enabled = false)`)
	is.True(p.finds("tables", failing, "autovacuum is disabled for trapeze.parked"))

	// The result does not depend on autovacuum, because it cannot remove rows that an open snapshot still sees.
	p.exec(`alter table trapeze.parked reset (autovacuum_enabled)`)
	p.exec(`insert into trapeze.parked (id, why, event_no, priority, lane, kind, subject)
		select n, 'approval', 1, 10, 'default', 'a.kind', '' from generate_series(1, 12000) n`)
	held, err := p.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	is.NoErr(err)
	defer func() { _ = held.Rollback(t.Context()) }()
	_, err = held.Exec(t.Context(), `select 1`)
	is.NoErr(err)
	p.exec(`delete from trapeze.parked`)
	p.pool.Reset() // a session reports its statistics when it ends, whereas an idle one may delay them by ten seconds
	pgtest.Wait(t, "the statistics show the dead rows", func() bool { return p.finds("tables", warning, "trapeze.parked has 12000 dead rows") })
}

func TestDoctorLateOrFailedMaintenance(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.join("web-1", 60, "k")
	is.True(p.finds("maintenance", healthy, "0 maintenance tasks are on time"))
	p.exec(`insert into trapeze.maintenance (task, begun_at, done_at, pod) values ('retention', now() - interval '9 hours', now() - interval '9 hours', 'web-1')`)
	is.True(p.finds("maintenance", warning, "retention (9h"))
	p.exec(`update trapeze.maintenance set done_at = now(), error = 'permission denied'`)
	is.True(p.finds("maintenance", warning, "failed on web-1: permission denied"))
}

func TestDoctorSynchronousCommitOff(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`)
	is.True(p.finds("durability", failing, "synchronous_commit is off"))
}

func TestDoctorNotificationDelivery(t *testing.T) {
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

func TestDoctorSuperuserProducers(t *testing.T) {
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

func TestDoctorMissingLimits(t *testing.T) {
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
	db.ok("lane", "set", "default", "max_age_s=0") // 0 means no limit, regardless of the pods' settings
	is.Equal(limits("TRAPEZE_MAX_AGE=24h", "TRAPEZE_APPROVAL_TTL=24h"), "jobs of 1 lane have no maximum age")
	db.ok("lane", "set", "default", "max_age_s=24h")
	is.Equal(limits(), "jobs can await approval forever")
}

func TestDoctorThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, []string{"TRAPEZE_MAX_AGE=24h"})
	db.enqueue("lost.kind")
	examined := func(said result) (findings []finding) {
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
			is.Equal(f.Says, "jobs can await approval forever") // the pod's settings apply
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

func TestDoctorWithoutAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.exec(`alter table trapeze.roles rename to elsewhere`) // prevents the API from reading the caller's permissions
	is.True(p.finds("api", failing, "the other checks did not run"))
	for _, check := range []string{"server", "notify", "schema"} {
		is.True(p.finds(check, healthy, ""))
	}
}

func TestADoctorFindsDeletedLanes(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPatient(t)
	p.join("pod", 600, "k")
	p.exec(`insert into trapeze.lanes (name) values ('mail')`)
	p.exec(`select trapeze.enqueue('k', lane => 'mail')`)
	p.exec(`delete from trapeze.lanes`)
	is.True(p.finds("lanes", failing, "the lane default does not exist"))
	is.True(p.finds("lanes", warning, "lane mail does not exist: 1 job waits"))
	is.Equal(p.run("lane", "set", "default").code, 0)
	is.Equal(p.run("lane", "set", "mail").code, 0)
	is.True(p.finds("lanes", healthy, "2 lanes open"))
}
