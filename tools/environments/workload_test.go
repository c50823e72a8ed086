//go:build environments

package environments

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

type (
	link  struct{ N, Of int }           // a step of a chain, with a write in the commit of its end
	plain struct{}                      // a step of a declared chain
	split struct{}                      // fans out into three batches, with a join
	batch struct{ Rows int }            // writes rows in transactions with checkpoints
	turn  struct{}                      // has a subject
	flaky struct{}                      // snoozes once, fails twice, succeeds
	fails struct{}                      // fails; a notice follows
	nap   struct{ First time.Duration } // waits during its first claim
	tick  struct{}                      // submitted by a schedule
)

func (link) Kind() string  { return "link" }
func (plain) Kind() string { return "plain" }
func (split) Kind() string { return "split" }
func (batch) Kind() string { return "batch" }
func (turn) Kind() string  { return "turn" }
func (flaky) Kind() string { return "flaky" }
func (fails) Kind() string { return "fails" }
func (nap) Kind() string   { return "nap" }
func (tick) Kind() string  { return "tick" }

// register registers all kinds.
func register(r *runner.Runner) {
	runner.Handle(r, func(_ context.Context, j *runner.Job[link]) (*runner.Outcome, error) {
		o := runner.Done(nil)
		if j.Args.N+1 < j.Args.Of {
			o = runner.Then(link{j.Args.N + 1, j.Args.Of})
		}
		return o.InTx(effect(j)), nil
	})
	runner.Handle(r, func(_ context.Context, j *runner.Job[plain]) (*runner.Outcome, error) {
		return runner.Done(map[string]string{"text": "naïve"}), nil
	})
	runner.Handle(r, func(_ context.Context, j *runner.Job[split]) (*runner.Outcome, error) {
		return runner.FanOut(batch{2}, batch{2}, batch{2}).Join(turn{}), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[batch]) (*runner.Outcome, error) {
		for n := range j.Args.Rows {
			if err := j.Tx(ctx, func(tx pgx.Tx) error { return effect(j)(ctx, tx) }, n); err != nil {
				return nil, err
			}
		}
		j.Progress(1, 1)
		return nil, j.Emit(ctx, "batch.written", "", "all rows", nil)
	})
	runner.Handle(r, func(_ context.Context, j *runner.Job[turn]) (*runner.Outcome, error) {
		return runner.Done(nil).InTx(effect(j)), nil
	})
	runner.Handle(r, func(_ context.Context, j *runner.Job[flaky]) (*runner.Outcome, error) {
		switch {
		case j.Fence() == 1:
			return runner.Snooze(20*time.Millisecond, "not now"), nil
		case j.Attempt() < 3:
			return nil, errors.New("not yet")
		}
		return runner.Done(nil).InTx(effect(j)), nil
	}, runner.Retry(3, runner.Backoff{Base: 20 * time.Millisecond}))
	runner.Handle(r, func(context.Context, *runner.Job[fails]) (*runner.Outcome, error) {
		return nil, runner.Permanent(errors.New("no such customer"))
	}, runner.OnFailure(turn{}))
	runner.Handle(r, func(ctx context.Context, j *runner.Job[nap]) (*runner.Outcome, error) {
		if j.Fence() > 1 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(j.Args.First):
			return nil, nil
		}
	})
	runner.Handle(r, func(context.Context, *runner.Job[tick]) (*runner.Outcome, error) { return nil, nil })
}

// effect returns a write that must be committed exactly once.
func effect(j interface {
	ID() int64
	Fence() int64
}) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into public.effects values ($1, $2)", j.ID(), j.Fence())
		return err
	}
}

// world is one environment while the workload runs in it.
type world struct {
	t      *testing.T
	config podConfig
	admin  *pgxpool.Pool // a superuser's connections, which the environment's settings do not affect
	host   *pgxpool.Pool // the application's
	r      *runner.Runner
	log    podtest.Log
	wall   bool   // whether the wall clocks of this process and of its pods jump
	pods   []*pod // all pods that were started

	want map[int64]job.State // how each submitted job must end
}

// run migrates the database as the environment's role and runs the workload.
func (w *world) run() {
	t, ctx := w.t, w.t.Context()
	w.want = map[int64]job.State{}
	var err error
	if w.r, err = runner.New(w.host, w.config.options(&w.log)); err != nil {
		t.Fatalf("new: %v", err)
	}
	defer w.r.Close()
	register(w.r)

	first := startPod(t, w, "first")
	w.submit(nap{First: time.Hour}, job.Succeeded)
	w.wait("the first pod runs the long job", func() bool { return w.yes("select exists (select from trapeze.live where state = 'running')") })
	second := startPod(t, w, "second")
	killed := w.submit(nap{First: time.Hour}, job.Cancelled)
	w.wait("the other long job runs", func() bool {
		return w.yes("select exists (select from trapeze.live where id = $1 and state = 'running')", killed)
	})

	w.setWallClocks(5 * time.Minute)
	w.submit(link{Of: 4}, job.Succeeded)
	w.submit(runner.Chain(plain{}, plain{}, plain{}), job.Succeeded)
	w.submit(split{}, job.Succeeded)
	for range 5 {
		w.submit(turn{}, job.Succeeded, runner.Subject("Zürich"[:1]))
	}
	w.submit(flaky{}, job.Succeeded)
	w.submit(fails{}, job.Failed)
	w.submit(turn{}, job.Succeeded, runner.Delay(400*time.Millisecond))
	unique := w.submit(turn{}, job.Succeeded, runner.Delay(time.Second), runner.Unique("one", runner.WhileActive))
	if again, err := w.r.Enqueue(ctx, turn{}, runner.Unique("one", runner.WhileActive)); err != nil || !again.Duplicate || again.ID != unique {
		t.Errorf("a second job with the same unique key: %+v, %v", again, err)
	}
	w.submitInTransactions()
	w.submitFromSQL()
	if _, err := w.r.Admin("operator").ForceCancel(ctx, killed); err != nil {
		t.Errorf("stop job %d: %v", killed, err)
	}
	w.read()

	w.setWallClocks(-5 * time.Minute)
	first.kill()
	w.wait("two occurrences of the schedule ran", func() bool {
		return w.yes("select count(*) >= 2 from trapeze.jobs j join trapeze.done d using (id) where j.kind = 'tick' and d.state = 'succeeded'")
	})
	w.wait("all jobs have ended", func() bool {
		return w.yes("select not exists (select from trapeze.job where kind <> 'tick' and state not in ('succeeded', 'failed', 'cancelled'))")
	})
	w.read()
	if w.wall {
		w.runWhileWallClocksJump()
	}
	second.stop(t)
	w.check()
	if w.wall {
		w.checkWallClocks()
	}
}

// failToStart starts four pods in an environment that is not fit for them, and expects that a log says so.
func (w *world) failToStart(says string) {
	var pods []*pod
	for n := range 4 {
		pods = append(pods, launch(w.t, w, fmt.Sprint("pod ", n)))
	}
	w.wait("a pod says what it lacks", func() bool {
		return slices.ContainsFunc(pods, func(p *pod) bool { return strings.Contains(p.log.String(), says) })
	})
}

func (w *world) submit(args job.Args, end job.State, options ...runner.EnqueueOption) int64 {
	w.t.Helper()
	made, err := w.r.Enqueue(w.t.Context(), args, append(options, runner.IdempotencyKey(fmt.Sprint("submission ", len(w.want))))...)
	if err != nil {
		w.t.Fatalf("submit %s: %v", args.Kind(), err)
	}
	w.want[made.ID] = end
	return made.ID
}

// submitInTransactions submits one job with the application's own write, and one in a transaction that is rolled back.
func (w *world) submitInTransactions() {
	w.t.Helper()
	for _, commit := range []bool{true, false} {
		rolledBack := errors.New("rolled back")
		err := pgx.BeginFunc(w.t.Context(), w.host, func(tx pgx.Tx) error {
			made, err := w.r.EnqueueTx(w.t.Context(), tx, turn{})
			if err != nil {
				return err
			}
			if _, err := tx.Exec(w.t.Context(), "insert into public.orders values ($1)", made.ID); err != nil {
				return err
			}
			if !commit {
				return rolledBack
			}
			w.want[made.ID] = job.Succeeded
			return nil
		})
		if err != nil && (commit || !errors.Is(err, rolledBack)) {
			w.t.Errorf("submit in a transaction: %v", err)
		}
	}
}

// submitFromSQL submits jobs with SQL alone, on a connection of the environment's role.
func (w *world) submitFromSQL() {
	w.t.Helper()
	for _, more := range []string{"", ", idempotency_key => 'from SQL'", ", unique_key => 'from SQL', subject => 'S'",
		`, on_failure => '[{"kind": "plain"}]', chain => '[{"kind": "plain"}]'`} {
		var id int64
		sql := "select id from " + pgx.Identifier{w.schema()}.Sanitize() + ".enqueue(kind => 'turn'" + more + ")"
		err := w.host.QueryRow(w.t.Context(), sql).Scan(&id)
		for tries := 0; isSerializationFailure(err) && tries < 20; tries++ { // the caller repeats its transactions, as at this isolation it must
			err = w.host.QueryRow(w.t.Context(), sql).Scan(&id)
		}
		if err != nil {
			w.t.Errorf("%s: %v", sql, err)
			continue
		}
		w.want[id] = job.Succeeded
	}
}

func isSerializationFailure(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "40001"
}

var exports sync.Mutex

// read opens the dashboard's pages and the API's lists, as the environment's role.
func (w *world) read() {
	w.t.Helper()
	h := api.Handler(w.r, api.Options{InsecureAllowAll: true, OnFailure: func(r *http.Request, err error) { w.t.Logf("%s: %v", r.URL, err) }})
	var paths []string
	for _, route := range api.Routes() {
		if route.Method == http.MethodGet {
			paths = append(paths, route.Path)
		}
	}
	for _, page := range ui.Routes() {
		paths = append(paths, "/ui"+strings.TrimSuffix(page.Path, "{$}"))
	}
	for _, path := range paths {
		switch path {
		case "/ui", "/readyz", "/jobs/current", "/admin/workers/schedules/preview": // a redirect, and requests that need parameters or a pod
			continue
		}
		if strings.ContainsAny(path, ":*{") || strings.HasSuffix(path, "/stream") {
			continue
		}
		response := httptest.NewRecorder()
		if strings.HasPrefix(path, "/admin/export") { // a process runs two exports at once, and other environments are read at the same time
			exports.Lock()
		}
		h.ServeHTTP(response, httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, nil))
		if strings.HasPrefix(path, "/admin/export") {
			exports.Unlock()
		}
		if response.Code != http.StatusOK {
			w.t.Errorf("GET %s: %d %.300s", path, response.Code, response.Body)
			return
		}
	}
}

// check compares how every job ended with how it should have, and checks the histories and the exactly-once writes.
func (w *world) check() {
	t := w.t
	t.Helper()
	for id, want := range w.want {
		j, err := w.r.GetJob(t.Context(), id)
		if err != nil || j.State != want {
			t.Errorf("job %d (%s): %s, want %s (%v, %s)", id, j.Kind, j.State, want, err, podtest.Message(j))
		}
	}
	for _, c := range []struct{ what, sql string }{
		{"jobs that failed or are unknown", `select count(*) from trapeze.jobs j left join trapeze.done d using (id)
			where d.state is distinct from 'succeeded' and not (j.kind = 'fails' and d.state = 'failed') and not (j.kind = 'nap' and d.state = 'cancelled')
			and j.kind <> 'tick'`},
		{"writes that are not there once", `select count(*) from (select j.id from trapeze.jobs j left join public.effects e on e.job = j.id
			where j.kind in ('link', 'turn', 'flaky', 'batch') group by j.id, j.kind having count(e.job) <> case j.kind when 'batch' then 2 else 1 end) s`},
		{"orders other than the one committed", "select count(*) - 1 from public.orders"},
		{"chains of other lengths", `select abs(count(*) - 4) + abs(count(*) filter (where step = 3) - 1) from trapeze.jobs where kind = 'link'`},
		{"steps of declared chains, less five", `select abs(count(*) - 4) from trapeze.jobs where kind = 'plain'`},
		{"notices of failures, less one", `select abs(count(*) - 1) from trapeze.jobs j join trapeze.jobs f on f.id = j.parent_id where f.kind = 'fails'`},
		{"subjects that still run", "select count(*) from trapeze.subjects where state = 'held'"},
		{"jobs in two places", `select count(*) from (select id from (select id from trapeze.live union all select id from trapeze.parked
			union all select id from trapeze.done) p group by id having count(*) > 1) s`},
	} {
		if n := pgtest.QueryOne[int](t, w.admin, w.sql(c.sql)); n != 0 {
			t.Errorf("%s: %d", c.what, n)
		}
	}
	if w.schema() == "trapeze" {
		podtest.CheckHistory(t, w.admin, w.r)
	}
	if t.Failed() {
		t.Logf("log of the client:\n%s", w.log.String())
	}
}

func (w *world) schema() string {
	if w.config.Schema == "" {
		return "trapeze"
	}
	return w.config.Schema
}

// sql replaces the schema in a statement.
func (w *world) sql(text string) string {
	return strings.ReplaceAll(text, "trapeze.", pgx.Identifier{w.schema()}.Sanitize()+".")
}

// yes runs a query of one boolean as a superuser.
func (w *world) yes(sql string, args ...any) (is bool) {
	w.t.Helper()
	if err := w.admin.QueryRow(w.t.Context(), w.sql(sql), args...).Scan(&is); err != nil {
		w.t.Fatalf("the test's own query: %v", err)
	}
	return is
}

// wait waits for a condition, and on failure lists the jobs that have not ended.
func (w *world) wait(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(40 * time.Second); !is(); {
		if time.Now().After(deadline) {
			left := pgtest.Column[string](w.t, w.admin, w.sql(`select format('%s %s %s %s %s', j.id, j.kind, j.state, j.reason, j.error)
				from trapeze.job j where j.state not in ('succeeded', 'cancelled') order by 1`))
			slices.Sort(left)
			w.t.Fatalf("timed out: %s; not ended or failed:\n%s\nlog of the client:\n%s", what, strings.Join(left, "\n"), w.log.String())
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.t.Context().Done():
			return
		}
	}
}

// migrate migrates the database through the application's pool, as a host program does when it starts.
func (w *world) migrate() error {
	return migrate.Up(w.t.Context(), w.host, w.config.options(&w.log))
}
