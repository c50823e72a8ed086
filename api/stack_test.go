package api_test

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// stuckInTheBasement blocks until its context ends. Tests look for its name in stacks.
func stuckInTheBasement(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func deepHandler(levels int, ctx context.Context) error {
	if levels > 0 {
		return deepHandler(levels-1, ctx)
	}
	return stuckInTheBasement(ctx)
}

func TestRunningHandlersStack(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	roles := byName(map[string][]string{"ana": {"operator"}, "sub": {"submitter"}, "vera": {"viewer"}})
	stuck := func(r *runner.Runner) {
		runner.HandleRaw(r, "stuck", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, deepHandler(3, ctx)
		})
	}
	h := newHostOn(t, pool, api.Options{Authenticate: roles}, stuck)
	id := h.send("POST", "/jobs", `{"kind":"stuck"}`, "X-Who", "ana").body["id"].(string)
	other := h.send("POST", "/jobs", `{"kind":"wait"}`, "X-Who", "ana").body["id"].(string)
	h.untilAs(id, job.Running, "X-Who", "ana")
	h.untilAs(other, job.Running, "X-Who", "ana")

	// One process responds to the request, while another pod runs the job and reads its stack.
	asking, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer asking.Close()
	number, err := strconv.ParseInt(id, 10, 64)
	is.NoErr(err)
	var stack job.Stack
	pgtest.Wait(t, "the handler is blocked", func() bool {
		stack, err = asking.Admin("ana").Stack(t.Context(), number)
		is.NoErr(err)
		return strings.Contains(stack.Stack, "stuckInTheBasement")
	})
	is.Equal(stack.PodID, h.PodID())
	is.Equal(stack.Pod, h.PodName())
	is.True(strings.HasPrefix(stack.Stack, "goroutine ") && strings.Contains(stack.Stack, "[chan receive") || strings.Contains(stack.Stack, "[select"))
	is.Equal(strings.Count(stack.Stack, "goroutine "), 1+strings.Count(stack.Stack, "in goroutine")) // the stack of a single goroutine
	is.True(strings.Count(stack.Stack, "deepHandler(") >= 4)

	a := h.send("POST", "/jobs/"+id+"/stack", "", "X-Who", "ana")
	is.Equal(a.status, http.StatusOK)
	is.True(strings.Contains(a.body["stack"].(string), "stuckInTheBasement"))
	is.True(!strings.Contains(h.send("POST", "/jobs/"+other+"/stack", "", "X-Who", "ana").body["stack"].(string), "stuckInTheBasement"))
	for _, who := range []string{"vera", "sub"} {
		is.Equal(h.send("POST", "/jobs/"+id+"/stack", "", "X-Who", who).status, http.StatusForbidden) // reading a stack needs a separate permission
	}
	trail := h.send("GET", "/admin/audit?action=job.stack&target=job+"+id, "", "X-Who", "ana").body["audit"]
	is.True(len(trail.([]any)) >= 2)

	is.Equal(h.send("POST", "/jobs/"+id+"/cancel", "", "X-Who", "ana").status, http.StatusAccepted)
	h.untilAs(id, job.Cancelled, "X-Who", "ana")
	a = h.send("POST", "/jobs/"+id+"/stack", "", "X-Who", "ana")
	is.Equal([]any{a.status, a.body["code"]}, []any{http.StatusConflict, "not_running"})
	is.Equal(h.send("POST", "/jobs/987654321/stack", "", "X-Who", "ana").status, http.StatusNotFound)
	var left int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.claim_requests`).Scan(&left))
	is.Equal(left, 0) // a request is removed once it has been answered
}

// waitInTheAttic blocks until open is closed.
func waitInTheAttic(open chan struct{}) { <-open }

// After a handler returns, its goroutine may already be running another job while the first job's outcome is being written.
func TestReturnedHandlersStack(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	open := make(chan struct{})
	h := newHost(t, api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "attic", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			waitInTheAttic(open)
			return nil, nil
		})
	})
	id := h.submit(`{"kind":"attic"}`)
	h.until(id, job.Running)
	pool := inside.Of(h.Runner).Store.Pool()
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()                 // without this, the pod could not drain after a test failure
	_, err = tx.Exec(t.Context(), `select from trapeze.live where id = $1 for update`, id) // the lock prevents the outcome from being written
	is.NoErr(err)
	stacks := make([]byte, 8<<20)
	in := func() bool { return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "waitInTheAttic(") }
	pgtest.Wait(t, "the handler is blocked", in)
	close(open)
	pgtest.Wait(t, "the handler has returned", func() bool { return !in() })
	answered := make(chan answer, 1)
	go func() { answered <- h.send("POST", "/jobs/"+id+"/stack", "") }()
	pgtest.Wait(t, "the pod has read the request twice", func() bool {
		if len(answered) > 0 {
			t.Fatalf("there is a stack: %s", (<-answered).text)
		}
		var beats int
		is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.claim_requests r join trapeze.pods p on p.id = r.pod
			where p.lease_until > r.created_at + interval '8.3 seconds'`).Scan(&beats))
		return beats == 1
	})
	is.NoErr(tx.Commit(t.Context()))
	a := <-answered
	is.Equal([]any{a.status, a.body["code"]}, []any{http.StatusConflict, "not_running"})
}

func TestRunningChainPriorityChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("ana", "operator")})
	id := h.submit(`{"kind":"hold","priority":3,"chain":[{"kind":"hold"},{"kind":"echo","priority":7}]}`)
	h.until(id, job.Running)
	path := "/admin/workers/jobs/" + id + "/priority"
	is.Equal(h.send("PATCH", path, `{"priority":50}`).body["code"], "not_queued") // only the priority of the whole chain can still be changed
	is.Equal(h.send("PATCH", path, `{"priority":50,"chain":true}`).status, http.StatusOK)
	is.Equal(h.send("GET", "/jobs/"+id, "").body["priority"], 50.0)
	close(h.held(id))
	h.until(id, job.Succeeded)
	step := func(n float64) (found map[string]any) {
		pgtest.Wait(t, "the step exists", func() bool {
			for _, one := range h.send("GET", "/jobs?pipeline="+id, "").body["jobs"].([]any) {
				if j := one.(map[string]any); j["step"] == n {
					found = j
				}
			}
			return found != nil
		})
		return found
	}
	second := step(1)
	is.Equal(second["priority"], 50.0) // the step inherits the chain's priority
	close(h.held(second["id"].(string)))
	is.Equal(step(2)["priority"], 50.0) // the chain's priority replaces that of the step
}
