package runnertest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// Harness runs jobs for one test. Create one with [New]. Only the test's goroutine may call its methods, except for [Harness.Die] and
// [Harness.DieAt], which are safe for concurrent use.
type Harness struct {
	// Timeout is the real time that RunUntilIdle waits before it fails the test. Default 30s.
	Timeout time.Duration

	t        testing.TB
	host     *pgxpool.Pool
	opts     runner.Options
	register func(*runner.Runner)
	client   *runner.Runner
	pods     []*pod // all pods started so far
	calendar calendar

	mu     sync.Mutex
	deaths []death // pending deaths, next one first
	died   int
	pod    *pod // the running pod, or nil
}

// New returns a harness with its own tables in the pool's database. The pool must reach PostgreSQL without a transaction pooler. New calls
// register once for each pod, to register the handlers. Some options have different defaults: LeaseDuration is 30s, HeartbeatInterval 50ms,
// PollInterval 100ms, and nothing is logged. The harness sets Schema, Name, DirectURL, BehindPooler, NoClaimAhead and TraceQueries itself.
// Everything that it creates is removed when the test ends.
func New(t testing.TB, pool *pgxpool.Pool, o runner.Options, register func(*runner.Runner)) *Harness {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PollInterval == 0 {
		o.PollInterval = 100 * time.Millisecond
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 30 * time.Second // the test never waits for a lease to expire, and a long lease keeps pods alive on a slow machine
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = min(50*time.Millisecond, o.LeaseDuration/3)
	}
	o.Schema = "runnertest_" + strings.ToLower(rand.Text()[:16])
	o.DirectURL, o.BehindPooler, o.NoClaimAhead = "", false, true // claiming ahead would distort crash counts
	h := &Harness{Timeout: 30 * time.Second, t: t, host: pool, opts: o, register: register}
	t.Cleanup(h.end)
	if err := migrate.Up(t.Context(), pool, o); err != nil {
		t.Fatalf("runnertest: make the tables: %v", err)
	}
	o.PodName = "test"
	client, err := runner.New(pool, o)
	if err != nil {
		t.Fatalf("runnertest: %v", err)
	}
	register(client)
	h.client = client
	h.fatal(h.startCalendar(t.Context()), "declare the schedules")
	return h
}

// end removes everything that the harness created. It does not need the test's pool, which may already be closed.
func (h *Harness) end() {
	h.t.Helper()
	for _, p := range h.pods {
		p.stop()
	}
	for _, p := range h.pods {
		if err := p.close(); err != nil {
			h.t.Errorf("runnertest: %v", err)
		}
	}
	if h.client != nil {
		h.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := h.drop(ctx); err != nil {
		h.t.Errorf("runnertest: drop the tables: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.deaths {
		h.t.Errorf("runnertest: no pod died %s: no job reached that point", d)
	}
}

func (h *Harness) drop(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, h.host.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "drop schema if exists "+h.opts.Schema+" cascade")
	return err
}

// Runner returns the runner through which the harness submits jobs. Use it for other calls, such as Approve, Cancel, Complete, EnqueueTx or
// RetryPipeline. The runner itself runs no jobs.
func (h *Harness) Runner() *runner.Runner { return h.client }

// Schema returns the schema of the harness's tables.
func (h *Harness) Schema() string { return h.opts.Schema }

// Enqueue submits a job and returns its id. The job starts with the next [Harness.RunUntilIdle].
func (h *Harness) Enqueue(args job.Args, options ...runner.EnqueueOption) int64 {
	h.t.Helper()
	made, err := h.client.Enqueue(h.t.Context(), args, options...)
	if err != nil {
		h.t.Fatalf("runnertest: %v", err)
	}
	return made.ID
}

// in replaces the schema name in a statement with the harness's schema.
func (h *Harness) in(sql string) string {
	return strings.ReplaceAll(sql, "trapeze.", h.opts.Schema+".")
}

// fatal fails the test immediately if err is not nil.
func (h *Harness) fatal(err error, doing string, args ...any) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("runnertest: %s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// Job returns the job with the given id.
func (h *Harness) Job(id int64) job.JobRow {
	h.t.Helper()
	j, err := h.client.GetJob(h.t.Context(), id)
	h.fatal(err, "read a job")
	return j
}

// Pipeline returns the pipeline that a job began.
func (h *Harness) Pipeline(id int64) job.Pipeline {
	h.t.Helper()
	p, err := h.client.Admin("").Pipeline(h.t.Context(), id)
	h.fatal(err, "read a pipeline")
	return p
}

// Jobs returns the jobs of the given kinds, or of all kinds if none are given, in submission order.
func (h *Harness) Jobs(kinds ...string) []job.JobRow {
	h.t.Helper()
	var all []job.JobRow
	for f := (job.Filter{Children: new(true), Limit: 1000}); ; {
		page, err := view.Jobs(h.t.Context(), inside.Of(h.client).Store, f)
		h.fatal(err, "list the jobs")
		for _, j := range page.Jobs {
			if len(kinds) == 0 || slices.Contains(kinds, j.Kind) {
				all = append(all, j)
			}
		}
		if f.Cursor = page.Cursor; f.Cursor == "" {
			slices.Reverse(all) // the list is ordered newest first
			return all
		}
	}
}

// Events returns the events of a job, in order.
func (h *Harness) Events(id int64) []job.Event {
	h.t.Helper()
	events, err := h.client.Admin("").Events(h.t.Context(), id, 0, 10_000)
	h.fatal(err, "read the history of job %d", id)
	return events
}

// Transitions returns the states that a job has gone through, in order, for example pending, running, succeeded.
func (h *Harness) Transitions(id int64) []job.State {
	h.t.Helper()
	var states []job.State
	for _, e := range h.Events(id) {
		if e.To != "" && (e.To != e.From || len(states) == 0) {
			states = append(states, e.To)
		}
	}
	return states
}

// RequireState fails the test immediately unless the job's state is want.
func (h *Harness) RequireState(id int64, want job.State) {
	h.t.Helper()
	j := h.Job(id)
	if j.State == want {
		return
	}
	why := ""
	if j.Reason != nil {
		why += ": " + string(*j.Reason)
	}
	if j.Error != nil {
		why += ": " + *j.Error
	}
	h.t.Fatalf("runnertest: job %d (%s) is %s, want %s%s", id, j.Kind, j.State, want, why)
}

// Querier is a pgx pool, connection or transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// RequireEnqueued returns the first job whose kind and JSON arguments equal those of args, in any state. If there is none, it fails the
// test immediately. A [runner.Raw] without JSON matches any arguments of its kind. db is a pool or a transaction; a transaction also sees
// its uncommitted jobs. schema is the value of Options.Schema; if empty, it is trapeze.
func RequireEnqueued(t testing.TB, db Querier, schema string, args job.Args) job.JobRow {
	t.Helper()
	found, wanted := search(t, db, schema, args)
	if len(found) == 0 {
		t.Fatalf("runnertest: no job %s is enqueued%s", wanted, otherJobs(t, db, schema, args.Kind()))
		return job.JobRow{}
	}
	return found[0]
}

// RequireNotEnqueued fails the test immediately if there is a job whose kind and JSON arguments equal those of args, in any state. The
// parameters are the same as for [RequireEnqueued].
func RequireNotEnqueued(t testing.TB, db Querier, schema string, args job.Args) {
	t.Helper()
	if found, wanted := search(t, db, schema, args); len(found) > 0 {
		t.Fatalf("runnertest: a job %s is enqueued:%s", wanted, lines(found))
	}
}

// RequireEnqueued calls the function [RequireEnqueued] for the harness's committed jobs.
func (h *Harness) RequireEnqueued(args job.Args) job.JobRow {
	h.t.Helper()
	return RequireEnqueued(h.t, h.host, h.opts.Schema, args)
}

// RequireNotEnqueued calls the function [RequireNotEnqueued] for the harness's committed jobs.
func (h *Harness) RequireNotEnqueued(args job.Args) {
	h.t.Helper()
	RequireNotEnqueued(h.t, h.host, h.opts.Schema, args)
}

// search returns the jobs that match the kind and JSON of args, oldest first, and a description of args for a failure message.
func search(t testing.TB, db Querier, schema string, args job.Args) (found []job.JobRow, wanted string) {
	t.Helper()
	encoded, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("runnertest: encode the args of %s: %v", args.Kind(), err)
	}
	wanted = fmt.Sprintf("%s with %s", args.Kind(), encoded)
	raw, ok := args.(runner.Raw)
	anything := ok && raw.JSON == nil
	if anything {
		wanted = args.Kind()
	}
	for _, j := range enqueued(t, db, schema, args.Kind()) {
		if anything || reflect.DeepEqual(valueOf(j.Args), valueOf(encoded)) {
			found = append(found, j)
		}
	}
	return found, wanted
}

// otherJobs describes the jobs that were found instead of the missing one: those of the same kind, or else all jobs.
func otherJobs(t testing.TB, db Querier, schema, kind string) string {
	t.Helper()
	if jobs := enqueued(t, db, schema, kind); len(jobs) > 0 {
		return "; jobs of this kind:" + lines(jobs)
	}
	if jobs := enqueued(t, db, schema, ""); len(jobs) > 0 {
		return "; jobs of other kinds:" + lines(jobs)
	}
	return "; there are no jobs"
}

func enqueued(t testing.TB, db Querier, schema, kind string) []job.JobRow {
	t.Helper()
	jobs, err := view.Enqueued(t.Context(), db, schema, kind)
	if err != nil {
		t.Fatalf("runnertest: list the jobs: %v", err)
	}
	return jobs
}

// lines lists jobs, one per line.
func lines(jobs []job.JobRow) string {
	var text strings.Builder
	for i, j := range jobs {
		if i == 10 {
			fmt.Fprintf(&text, "\n\t… and %d more", len(jobs)-i)
			break
		}
		fmt.Fprintf(&text, "\n\tjob %d: %s %s, %s", j.ID, j.Kind, j.Args, j.State)
	}
	return text.String()
}

// value decodes JSON, so that a comparison ignores white space and the order of fields.
func valueOf(raw json.RawMessage) (v any) {
	_ = json.Unmarshal(raw, &v) // raw was encoded by this package or read from a json column, so it is valid
	return v
}

// leftSQL lists the jobs that keep the harness from being idle: running jobs, due jobs that are allowed to start, and waiting jobs that
// need to be settled. A job with a key is due while no other job of the key is pending or running, because a place is then free. $1 lists
// the kinds with a handler here. The query omits jobs that cannot start because their lane is disabled, drained or without slots, or
// because the queue is paused or frozen.
const leftSQL = `
select l.id, l.kind, l.state, l.attempt, l.crashes,
	case when l.state = 'running' then coalesce((select p.name from trapeze.pods p where p.id = l.pod), '') else '' end as pod
from trapeze.live l join trapeze.lanes n on n.name = l.lane
where l.state = 'running' or l.kind = any($1::text[]) and ` + opens + `
union all
select p.id, p.kind, 'due, but not yet admitted', p.attempt, p.crashes, '' from trapeze.parked p join trapeze.lanes n on n.name = p.lane
where p.why in ('subject', 'key') and p.key is not null and p.kind = any($1) and ` + opens + `
	and not exists (select from trapeze.live l where l.key = p.key and (l.lane = p.lane or l.kind = p.kind))
	and not exists (select from trapeze.subjects c where c.kind = p.kind and c.subject = p.subject and c.state = 'held')
union all
select id, kind, 'due, but not yet in its lane', attempt, crashes, '' from trapeze.parked
where why in ('scheduled', 'retry', 'snooze') and run_after <= now()
union all
select f.id, j.kind, 'waiting, although its branches have ended or failed', 0, 0, '' from trapeze.fan_outs f join trapeze.jobs j using (id)
where (f.open = 0) <> f.ended or f.fail_fast and f.failed > 0 and not f.ended
order by id limit 11`

// opens is the condition that jobs of lane n may start.
const opens = `n.enabled and not n.drained and n.slots is distinct from 0 and n.slots_per_pod is distinct from 0
	and not (select paused or frozen from trapeze.queue_state)`

// left is a job that keeps the harness from being idle.
type left struct {
	ID               int64
	Kind, State      string
	Attempt, Crashes int
	Pod              string
}

func (l left) String() string {
	switch {
	case l.Pod != "":
		return fmt.Sprintf("job %d (%s) is %s on %s: attempt %d, crashes %d", l.ID, l.Kind, l.State, l.Pod, l.Attempt, l.Crashes)
	default:
		return fmt.Sprintf("job %d (%s) is %s", l.ID, l.Kind, l.State)
	}
}

// RunUntilIdle checks for remaining jobs at intervals that grow from pollInterval to slowPollInterval, so that it reports a short run at once
// and costs little during a long one.
const (
	pollInterval     = 5 * time.Millisecond
	slowPollInterval = 50 * time.Millisecond
)

// RunUntilIdle runs all due jobs, and those that become due as a result, until no other job can run. The remaining jobs are waiting for a
// time, an approval, their branches or a completion, or are held back by a closed lane or queue. If the pod dies, RunUntilIdle lets its
// lease expire as [Harness.Advance] does, and continues with a new pod. After [Harness].Timeout, it fails the test and lists the jobs that
// are left.
//
// It also performs a runner's periodic maintenance: it ends jobs that are too old or were not approved in time.
func (h *Harness) RunUntilIdle() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), h.Timeout)
	defer cancel()
	deadline := time.Now().Add(h.Timeout)
	for {
		h.fatal(h.client.Maintain(ctx), "run until idle")
		if len(h.left()) == 0 {
			return // no need to start a pod
		}
		p, err := h.startPod()
		h.fatal(err, "start a pod")
		rest := h.watchPod(p, deadline)
		if len(rest) > 0 && !p.isDead() {
			h.t.Fatalf("runnertest: not idle after %s:\n%s", h.Timeout, list(rest))
		}
		p.stop()
		if !p.isDead() {
			h.fatal(p.close(), "stop a pod")
		}
		if !p.isDead() { // it may have died while stopping: the last commit may be visible before its reply arrives
			return
		}
		h.fatal(h.expire(ctx, p), "take over from %s", p.name)
	}
}

// watchPod waits until the pod has died, no jobs remain, or the deadline has passed, and returns the remaining jobs.
func (h *Harness) watchPod(p *pod, deadline time.Time) []left {
	h.t.Helper()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for began := time.Now(); ; tick.Reset(min(max(time.Since(began)/16, pollInterval), slowPollInterval)) {
		select {
		case <-p.dead:
			return nil
		case <-p.ended:
			h.t.Fatalf("runnertest: %s stopped: %v", p.name, p.err)
		case <-tick.C:
		}
		if rest := h.left(); len(rest) == 0 || time.Now().After(deadline) {
			return rest
		}
	}
}

func (h *Harness) left() []left {
	h.t.Helper()
	rows, err := h.host.Query(h.t.Context(), h.in(leftSQL), h.client.Kinds())
	h.fatal(err, "check for remaining work")
	rest, err := pgx.CollectRows(rows, pgx.RowToStructByPos[left])
	h.fatal(err, "check for remaining work")
	return rest
}

func list(rest []left) string {
	var lines []string
	for i, l := range rest {
		if i == 10 {
			lines = append(lines, "\t…")
			break
		}
		lines = append(lines, "\t"+l.String())
	}
	return strings.Join(lines, "\n")
}

// expire waits until the server has closed a dead pod's connections, and then lets the pod's lease expire.
func (h *Harness) expire(ctx context.Context, p *pod) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var open int
		// A statement that is waiting for a lock does not notice that its client has disconnected, so the sessions are terminated.
		err := h.host.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
			where datname = current_database() and pid = any($1::int[])`, p.wire.processes()).Scan(&open)
		if err != nil {
			return err
		}
		if open == 0 {
			return h.advance(ctx, h.opts.LeaseDuration)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of its connections are still open: %w", open, ctx.Err())
		}
	}
}
