//go:build ha && linux

package ha

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// On machines that are busy with other work, set HA_SLACK, which is added to the handlers' time limits.
const (
	handlersWithin = 2 * time.Second // from the time at which the new primary accepts writes until a handler starts
	everyPodWithin = 4 * time.Second // from the same time until every pod has started a handler: a heartbeat interval plus the time to reconnect
	stuckAfter     = 60 * time.Second
	settleWithin   = 90 * time.Second
)

func slack() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("HA_SLACK"))
	return d
}

const reportHead = "verdict  submissions  handlers  every pod  cancelled  lost  doubled  reused  declared dead   fault"

// reported contains one result line for each fault.
var reported []string

// measured records one fault and its consequences. Durations start when the database accepts writes again.
type measured struct {
	name                            string
	at                              time.Time
	submissions, handlers, everyPod time.Duration
	goal, goalOfEvery               time.Duration
	cancelled                       int
	outage                          string
}

// trial is one scenario with its cluster, pods and load.
type trial struct {
	t       *testing.T
	load    *load
	pods    []*pod
	faults  []measured
	excused func(accepted) bool // whether a submission may be lost; nil if none may
	mayDie  int                 // number of pods killed by the scenario itself
}

// begin starts the pods and the load.
func begin(t *testing.T, env ...string) *trial {
	t.Helper()
	tr := &trial{t: t, load: newLoad(t)}
	tr.pods = startPods(t, tr.load.ledger.URL, env...)
	tr.load.begin(t, tr.pods)
	pgtest.WaitFor(t, time.Minute, "every pod runs jobs", func() bool { return len(tr.load.startedSince(time.Time{})) == pods })
	wait(t.Context(), 3*time.Second) // gives long jobs time to start
	return tr
}

// fault runs do, which causes a fault and returns once the database accepts writes again. fault then measures how long the pods take to
// recover.
func (tr *trial) fault(name string, goal, goalOfEvery time.Duration, do func() (accepts time.Time)) {
	tr.t.Helper()
	m := measured{name: name, at: time.Now(), goal: goal, goalOfEvery: goalOfEvery}
	accepts := do()
	var first map[string]time.Time
	for deadline := accepts.Add(stuckAfter); time.Now().Before(deadline); wait(tr.t.Context(), 20*time.Millisecond) {
		if first = tr.load.startedSince(accepts); len(first) == pods && !tr.load.acceptedSince(accepts).IsZero() {
			break
		}
	}
	m.submissions, m.handlers, m.everyPod = stuckAfter, stuckAfter, 0
	if at := tr.load.acceptedSince(accepts); !at.IsZero() {
		m.submissions = at.Sub(accepts)
	}
	for _, at := range first {
		m.handlers, m.everyPod = min(m.handlers, at.Sub(accepts)), max(m.everyPod, at.Sub(accepts))
	}
	if len(first) < pods {
		m.everyPod = stuckAfter
	}
	submissions, handlers := tr.load.gaps(m.at)
	m.outage = fmt.Sprintf("without submissions %.1f s, without starts %.1f s in all", submissions.Seconds(), handlers.Seconds())
	wait(tr.t.Context(), 3*time.Second)
	m.cancelled = tr.load.cancelled(m.at)
	tr.faults = append(tr.faults, m)
	tr.t.Logf("%s: submissions %.2f s, handlers %.2f s, every pod %.2f s after the database accepted writes; %s; %d handlers cancelled",
		name, m.submissions.Seconds(), m.handlers.Seconds(), m.everyPod.Seconds(), m.outage, m.cancelled)
}

// judge stops the load, waits until all jobs have finished, checks every job in the database, and prints one line per fault.
func (tr *trial) judge(url string) {
	tr.t.Helper()
	tr.load.end()
	found := tr.check(url)
	for _, m := range tr.faults {
		var failed []string
		if m.handlers > m.goal+slack() {
			failed = append(failed, fmt.Sprintf("handlers after %.1f s, the goal is %.1f s", m.handlers.Seconds(), m.goal.Seconds()))
		}
		if m.everyPod > m.goalOfEvery+slack() {
			failed = append(failed, fmt.Sprintf("a pod without handlers for %.1f s, the goal is %.1f s", m.everyPod.Seconds(), m.goalOfEvery.Seconds()))
		}
		failed = append(failed, found.broken...)
		verdict := "PASS"
		if len(failed) > 0 {
			verdict = "FAIL"
			tr.t.Errorf("%s: %s", m.name, strings.Join(failed, "; "))
		}
		row := fmt.Sprintf("%-7s %10s %11s %10s %10d %5d %8d %7d %14d   %s (%s)", verdict, seconds(m.submissions), seconds(m.handlers),
			seconds(m.everyPod), m.cancelled, found.lost, found.doubled, found.reused, found.dead, m.name, m.outage)
		fmt.Println(row)
		reported = append(reported, row)
	}
}

func seconds(d time.Duration) string {
	if d >= stuckAfter {
		return fmt.Sprintf("> %.0f s", stuckAfter.Seconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// findings counts the problems in a scenario, across all its faults.
type findings struct {
	lost, doubled, reused, dead int
	excused                     int // lost submissions for which the loss is allowed
	broken                      []string
}

func (f *findings) note(counter *int, format string, args ...any) {
	if *counter++; len(f.broken) < 6 {
		f.broken = append(f.broken, fmt.Sprintf(format, args...))
	}
}

// row represents a job in the database.
type row struct {
	ID, Pipeline int64
	Step         int
	Kind, State  string // State is empty until the job has finished
	Rows         int    // number of rows that the job wrote
	Distinct     int
}

const jobsSQL = `
select j.id, j.pipeline_id, j.step, j.kind, coalesce(d.state, ''), coalesce(r.n, 0), coalesce(r.different, 0)
from trapeze.jobs j left join trapeze.done d on d.id = j.id
	left join (select job_id, count(*)::int n, count(distinct n)::int different from trapeze.demo_rows group by 1) r on r.job_id = j.id`

// check compares the responses that clients received with the jobs in the database.
func (tr *trial) check(url string) (f findings) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tr.t.Context()), settleWithin+time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		tr.t.Fatalf("connect for the check: %v", err)
	}
	defer pool.Close()
	var open int
	for deadline := time.Now().Add(settleWithin); ; wait(ctx, 200*time.Millisecond) {
		err := pool.QueryRow(ctx, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`).Scan(&open)
		if late := time.Now().After(deadline); err == nil && (open == 0 || late) {
			break
		} else if late { // until then, the proxy may still end sessions
			tr.t.Fatalf("count the open jobs: %v", err)
		}
	}
	if open > 0 {
		f.broken = append(f.broken, fmt.Sprintf("%d jobs have not ended %s after the last submission", open, settleWithin))
	}
	found, err := pool.Query(ctx, jobsSQL)
	if err != nil {
		tr.t.Fatalf("read the jobs: %v", err)
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil {
		tr.t.Fatalf("read the jobs: %v", err)
	}
	pipelines := map[int64][]row{}
	for _, one := range rows {
		pipelines[one.Pipeline] = append(pipelines[one.Pipeline], one)
	}
	for _, steps := range pipelines {
		slices.SortFunc(steps, func(a, b row) int { return a.Step - b.Step })
	}
	tr.checkJobs(&f, pipelines)
	if tr.excused != nil && f.excused == 0 {
		f.broken = append(f.broken, "nothing was lost with the tail: the scenario has tested nothing")
	}
	tr.checkDead(ctx, pool, &f)
	tr.t.Logf("%d submissions accepted, %d jobs; answers without success: %v", len(tr.load.accepted), len(rows), tr.load.errors)
	return f
}

func (tr *trial) checkJobs(f *findings, pipelines map[int64][]row) {
	tr.load.mu.Lock()
	defer tr.load.mu.Unlock()
	byID := map[int64]accepted{}
	for _, one := range tr.load.accepted {
		if other, twice := byID[one.id]; twice {
			f.note(&f.reused, "the id %d was given to %s and to %s", one.id, other.key, one.key)
		}
		byID[one.id] = one
	}
	for _, one := range tr.load.accepted {
		steps := pipelines[one.id]
		switch {
		case len(steps) == 0 && tr.excused != nil && tr.excused(one):
			f.excused++
		case len(steps) > 0 && steps[0].Kind != one.kind:
			f.note(&f.reused, "job %d of %s is of the kind %s, submitted was %s", one.id, one.key, steps[0].Kind, one.kind)
		case len(steps) < one.jobs:
			f.note(&f.lost, "the pipeline %d of %s, accepted at %s, has %d of %d jobs", one.id, one.key, one.at.Format("15:04:05.000"), len(steps), one.jobs)
		case len(steps) > one.jobs:
			f.note(&f.doubled, "the pipeline %d of %s has %d instead of %d jobs", one.id, one.key, len(steps), one.jobs)
		}
	}
	roots := 0
	for id, steps := range pipelines {
		roots++
		for _, step := range steps {
			rows := 0
			if step.Kind == "demo.tx" {
				rows = rowsOfAJob
			}
			switch {
			case step.State != "succeeded":
				f.note(&f.lost, "job %d of the pipeline %d, %s, has the state %q", step.ID, id, step.Kind, step.State)
			case step.Rows > rows || step.Distinct != step.Rows:
				f.note(&f.doubled, "job %d wrote %d rows, %d different, instead of %d", step.ID, step.Rows, step.Distinct, rows)
			case step.Rows < rows:
				f.note(&f.lost, "job %d wrote %d rows instead of %d", step.ID, step.Rows, rows)
			}
		}
	}
	if roots > len(tr.load.keys) {
		f.doubled += roots - len(tr.load.keys)
		f.broken = append(f.broken, fmt.Sprintf("%d pipelines of %d keys", roots, len(tr.load.keys)))
	}
	kindOf := map[int64]string{}
	for _, one := range tr.load.lines {
		if kind, known := kindOf[one.Job]; known && kind != one.Kind {
			f.note(&f.reused, "handlers of the kinds %s and %s ran for the id %d", kind, one.Kind, one.Job)
		}
		kindOf[one.Job] = one.Kind
	}
}

// checkDead counts, from events and pod rows, the pods that were declared dead beyond those that the scenario killed.
func (tr *trial) checkDead(ctx context.Context, pool *pgxpool.Pool, f *findings) {
	var events, rows int
	err := pool.QueryRow(ctx, `select (select count(*) from trapeze.job_events where event = 'pod.lapsed'),
		(select count(*) from trapeze.pods where closed = 'lapsed')`).Scan(&events, &rows)
	if err != nil {
		tr.t.Fatalf("count the pods that were declared dead: %v", err)
	}
	if f.dead = max(events, rows) - tr.mayDie; f.dead > 0 {
		f.broken = append(f.broken, fmt.Sprintf("%d living pods were declared dead", f.dead))
	}
	f.dead = max(f.dead, 0)
	for _, p := range tr.pods {
		if !p.now.alive() {
			f.broken = append(f.broken, p.name+" has ended")
		}
	}
}

// acceptsWrites waits until a new connection to url can commit a write, and returns the time.
func acceptsWrites(t *testing.T, url string, port int) time.Time {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); wait(t.Context(), 10*time.Millisecond) {
		if writes(t.Context(), url, port) {
			return time.Now()
		}
	}
	t.Fatalf("%s does not accept writes", url)
	return time.Time{}
}

// writes reports whether a new connection to url can commit a write on the server with the given port, or on any server if port is 0.
func writes(ctx context.Context, url string, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return false
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var at int
	if conn.QueryRow(ctx, `select inet_server_port()`).Scan(&at) != nil || port != 0 && at != port {
		return false
	}
	_, err = conn.Exec(ctx, `insert into ha_probe default values`)
	return err == nil
}
