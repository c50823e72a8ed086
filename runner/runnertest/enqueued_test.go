package runnertest_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestRequireEnqueuedInTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, steps)
	undone := errors.New("undone")
	is.Equal(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		made, err := h.Runner().EnqueueTx(t.Context(), tx, step{Name: "a"}, runner.Subject("s"))
		is.NoErr(err)
		found := runnertest.RequireEnqueued(t, tx, h.Schema(), step{Name: "a"})
		is.Equal(found.ID, made.ID)
		is.Equal(found.Subject, "s")
		is.Equal(found.State, job.Pending)
		runnertest.RequireNotEnqueued(t, tx, h.Schema(), step{Name: "b"})
		runnertest.RequireNotEnqueued(t, pool, h.Schema(), step{Name: "a"}) // the job is not visible outside the transaction yet
		h.RequireNotEnqueued(step{Name: "a"})
		return undone
	}), undone)
	h.RequireNotEnqueued(step{Name: "a"})
}

func TestRequireEnqueuedInAnyState(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, steps)
	ended := h.Enqueue(step{Name: "a"})
	h.RunUntilIdle()
	waits := h.Enqueue(last{step{Name: "b"}}, runner.NeedsApproval())
	is.Equal(h.RequireEnqueued(runner.Raw{Name: "step", JSON: json.RawMessage(`{ "Name": "a" }`)}).ID, ended)
	is.Equal(h.RequireEnqueued(last{step{Name: "b"}}).State, job.AwaitingApproval)
	is.Equal(h.RequireEnqueued(runner.Raw{Name: "last"}).ID, waits) // matches any arguments
	h.RequireNotEnqueued(runner.Raw{Name: "first"})
}

func TestRequireEnqueuedFailureList(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, steps)
	says := func(require func(testing.TB, runnertest.Querier, string, job.Args), args job.Args) string {
		return failing(t, func(t testing.TB) { require(t, pool, h.Schema(), args) })
	}
	numbered := func(text string) string { // removes the job IDs, which differ between runs
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			if _, rest, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(line, "\tjob ") {
				lines[i] = "\tjob: " + rest
			}
		}
		return strings.Join(lines, "\n")
	}
	want := func(t testing.TB, db runnertest.Querier, schema string, args job.Args) {
		runnertest.RequireEnqueued(t, db, schema, args)
	}
	b := step{Name: "b"}
	is.Equal(says(want, b), "runnertest: no job step with {\"Name\":\"b\"} is enqueued; there are no jobs")
	h.Enqueue(last{})
	is.Equal(numbered(says(want, b)),
		"runnertest: no job step with {\"Name\":\"b\"} is enqueued; jobs of other kinds:\n\tjob: last {\"Name\":\"\"}, pending")
	is.Equal(numbered(says(runnertest.RequireNotEnqueued, runner.Raw{Name: "last"})),
		"runnertest: a job last is enqueued:\n\tjob: last {\"Name\":\"\"}, pending")
	h.Enqueue(step{Name: "a"})
	h.Enqueue(step{Name: "c"})
	is.Equal(numbered(says(want, b)),
		"runnertest: no job step with {\"Name\":\"b\"} is enqueued; jobs of this kind:\n\tjob: step {\"Name\":\"a\"}, pending\n\tjob: step {\"Name\":\"c\"}, pending")
	for range 11 {
		h.Enqueue(step{Name: "a"})
	}
	is.True(strings.HasSuffix(says(want, b), "… and 3 more"))
}
