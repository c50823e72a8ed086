package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// scene describes the rows that exist when a statement for one job runs.
type scene struct {
	subject, unique, closed, named, starts bool
	cancelled, fence, approval             bool // cases in which the statements for one job write nothing
	ahead                                  int  // priority of a job that is waiting in the lane; -1 if there is none
	next                                   bool
}

const oneID, nextID = 7001, 7002

// rows inserts the scene's rows in a transaction.
func (c scene) rows(t *testing.T, tx pgx.Tx) (podID string) {
	t.Helper()
	podID = uuid.NewString()
	run := func(when bool, sql string, values ...any) {
		if _, err := tx.Exec(t.Context(), sql, values...); when && err != nil {
			t.Fatal(err)
		}
	}
	subject, while := "", (*string)(nil)
	if c.subject {
		subject = "s"
		run(true, `insert into trapeze.subjects values ('k', 's', $1, 'held')`, oneID)
	}
	if c.unique {
		while = Some("active")
		run(true, `insert into trapeze.unique_keys values ('k', 'key', $1)`, oneID)
	}
	run(true, `insert into trapeze.pods (id, name, lease_until, closed_at, closed) values ($1, 'p', now(), case when $2 then now() end, case when $2 then 'left' end)`, podID, c.closed)
	run(true, `update trapeze.lanes set requires_approval = $1 where name = 'default'`, c.approval)
	run(true, `insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id) values ($1, 'k', 'default', $2, '{}', $1)`, oneID, subject)
	run(true, `insert into trapeze.live (id, ready_at, claimed_at, started_at, fence, pod, event_no, attempt, crashes, priority, state, unique_while, lane, kind,
		subject, cancel_requested) values ($1, now(), now(), now(), 3, $2, 5, 2, 1, 4, 'running', $3, 'default', 'k', $4, $5)`, oneID, podID, while, subject, c.cancelled)
	if c.ahead >= 0 {
		run(true, `insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject) values (1, now(), 1, $1, 'pending', 'default', 'k', '')`, c.ahead)
	}
	return podID
}

func (c scene) newJob() *NewJob {
	n := &NewJob{ID: nextID, Kind: "after", Lane: "default", Args: json.RawMessage(`{"n": 1.0}`), Priority: 4, Starts: c.starts, Submitter: "ann", Trace: "00-1-2-01"}
	if c.named {
		limit := 3
		n.Pipeline, n.Planned, n.MaxAttempts, n.MaxCrashes, n.Impaired, n.Actor = Some("name"), json.RawMessage(`[{}]`), &limit, &limit, true, "handler"
	}
	return n
}

// written runs a statement in a savepoint and then rolls it back. It returns the statement's result and all rows that it could have
// written.
func written(t *testing.T, tx pgx.Tx, sql *statement, by args) (answer, rows string) {
	t.Helper()
	values, err := sql.bind(by)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	result, err := inner.Query(t.Context(), sql.text, values...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(result, func(r pgx.CollectableRow) (string, error) {
		v, err := r.Values()
		return fmt.Sprint(v[:2], v[len(v)-2:]), err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.QueryRow(t.Context(), everyRowSQL).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(list), rows
}

// everyRowSQL returns all rows of the tables to which the statements write, as a single string.
var everyRowSQL = func() string {
	var tables []string
	for _, table := range []string{"jobs", "live", "done", "parked", "job_event", "pipelines", "subjects", "unique_keys"} {
		tables = append(tables, fmt.Sprintf(`'%s: ' || (select coalesce(json_agg(r order by r::text), '[]')::text from trapeze.%[1]s r)`, table))
	}
	return "select " + strings.Join(tables, " || e'\\n' || ")
}()

// scenes calls do for every combination of the fields of a scene.
func scenes(do func(scene)) {
	for bits := range 1 << 9 {
		bit := func(n int) bool { return bits&(1<<n) != 0 }
		for _, ahead := range []int{-1, 3, 4, 5} {
			if c := (scene{subject: bit(0), unique: bit(1), closed: bit(2), named: bit(3), starts: bit(4), cancelled: bit(5), fence: bit(6), approval: bit(7),
				next: bit(8), ahead: ahead}); !c.cancelled || !c.fence && !c.approval { // a single reason to write nothing is enough
				do(c)
			}
		}
	}
}

func TestSingleFinishMatchesBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	compared, passed := 0, 0
	scenes(func(c scene) {
		if c.approval || !c.next && (c.named || c.starts || c.ahead > 3) {
			return // this combination cannot occur when a job finishes
		}
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		defer func() { is.NoErr(tx.Rollback(t.Context())) }()
		podID := c.rows(t, tx)
		end := Ending{ID: oneID, Fence: 3, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Result: json.RawMessage(`{"kg": 1.50}`)}
		if c.fence {
			end.Fence = 2
		}
		if c.next {
			parent := int64(oneID)
			end.Next = c.newJob()
			end.Next.PipelineID, end.Next.ParentID, end.Next.Step, end.Next.Approved = oneID, &parent, 1, true
		}
		sql, by := finishOneOf(podID, []Ending{end})
		is.True(sql != nil)
		answer, rows := written(t, tx, sql, by)
		sql, by = finishManyOf(podID, []Ending{end})
		wanted, rowsWanted := written(t, tx, sql, by)
		if (c.cancelled || c.subject) && !c.fence {
			passed++
			none, by := finishManyOf(podID, []Ending{{ID: 1 << 40}})
			wanted, rowsWanted = written(t, tx, none, by) // the result of a statement that writes nothing
		}
		compared++
		if answer != wanted || rows != rowsWanted {
			t.Fatalf("%+v:\n%s\n%s\nwant\n%s\n%s", c, answer, rows, wanted, rowsWanted)
		}
	})
	is.True(compared > 200 && passed > 50)
}

// BenchmarkOneJob compares the statements for one job with those for many jobs when there is only one job. They alternate on one connection, so
// that the load of the machine affects both, and commits do not wait for the WAL.
func BenchmarkOneJob(b *testing.B) {
	conn, err := pgtest.Pool(b).Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string, values ...any) {
		if _, err := conn.Exec(b.Context(), sql, values...); err != nil {
			b.Fatal(err)
		}
	}
	for name, value := range pins {
		exec(fmt.Sprintf("set %s = '%s'", name, value))
	}
	exec(`set synchronous_commit = off`)
	podID, id := uuid.NewString(), int64(1000)
	exec(`insert into trapeze.pods (id, name, lease_until) values ($1, 'p', now())`, podID)
	send := func(sql *statement, by args) time.Duration {
		began := time.Now()
		values, err := sql.bind(by)
		if err != nil {
			b.Fatal(err)
		}
		exec(sql.text, values...)
		return time.Since(began)
	}
	_, _, ranges := readRanges(nil)
	enqueue := func(one bool) time.Duration {
		id++
		n := NewJob{ID: id, Kind: "k", Lane: "default", Args: json.RawMessage(`{"n":1}`), Starts: true}
		if one {
			return send(enqueueOneSQL, append(append(newJobs.values(enqueueOneSQL, &n), args{{"pod", podID}, {"ahead", int4(0)}}...), ranges...))
		}
		return send(enqueueSQL, append(append(newJobs.arrays(enqueueSQL, []*NewJob{&n}), args{{"pod", podID}}...), ranges...))
	}
	finish := func(one, step bool) time.Duration {
		ends := []Ending{{ID: id, Fence: 1, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Result: json.RawMessage(`1`)}}
		if step {
			parent := id
			id++
			ends[0].Next = &NewJob{ID: id, Kind: "k", Lane: "default", Args: json.RawMessage(`{"n":1}`), PipelineID: 1000, ParentID: &parent, Step: 1, Starts: true, Approved: true}
		}
		if one {
			return send(finishOneOf(podID, ends))
		}
		return send(finishManyOf(podID, ends))
	}
	took := map[string]map[bool][]time.Duration{"enqueue": {}, "end": {}, "hand-off": {}}
	for n := 0; b.Loop(); n++ {
		for _, one := range []bool{n%2 == 0, n%2 != 0} {
			for name, d := range map[string]time.Duration{"enqueue": enqueue(one), "hand-off": finish(one, true), "end": finish(one, false)} {
				took[name][one] = append(took[name][one], d)
			}
		}
	}
	for name, of := range took {
		median := map[bool]float64{}
		for one, list := range of {
			slices.Sort(list)
			median[one] = list[len(list)/2].Seconds() * 1e6
		}
		b.ReportMetric(median[true], name+"-one-µs")
		b.ReportMetric(median[false]/median[true], name+"-many/one")
	}
}

func TestSingleInsertIDInUse(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tx, err := pgtest.Pool(t).Begin(t.Context())
	is.NoErr(err)
	defer func() { is.NoErr(tx.Rollback(t.Context())) }()
	podID := scene{}.rows(t, tx)
	n := scene{named: true}.newJob()
	n.ID = oneID
	nothing, by := finishManyOf(podID, []Ending{{ID: 1 << 40}})
	_, before := written(t, tx, nothing, by)
	answer, after := written(t, tx, enqueueOneFreeSQL, append(newJobs.values(enqueueOneFreeSQL, n), args{{"pod", podID}}...))
	is.Equal(answer, "[]")
	is.Equal(after, before)
}
