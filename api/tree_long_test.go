//go:build long

package api_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestTreeOfManyBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "wide", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			children := make([]job.Args, 35)
			for i := range children {
				children[i] = runner.Raw{Name: "wider"}
			}
			return runner.FanOut(children...), nil
		})
		runner.HandleRaw(r, "wider", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			children := make([]job.Args, 35)
			for i := range children {
				children[i] = runner.With(runner.Raw{Name: "echo"}, runner.Delay(3600e9))
			}
			return runner.FanOut(children...), nil
		})
	})
	id := h.submit(`{"kind":"wide"}`)
	pgtest.Wait(t, "all have fanned out", func() bool {
		return len(h.send("GET", "/jobs?kind=wider&state=waiting&limit=100&pipeline="+id, "").body["jobs"].([]any)) == 35
	})
	is.True(h.send("POST", "/pipelines/"+id+"/cancel", "").status < 300) // cancelled children are shown too
	h.until(id, job.Cancelled)
	var count func(jobs []any) int
	count = func(jobs []any) (n int) {
		for _, one := range jobs {
			if fan, ok := one.(map[string]any)["fan_out"].(map[string]any); ok {
				shown := fan["shown"].([]any)
				n += len(shown) + count(shown)
			}
		}
		return n
	}
	tree := h.send("GET", "/pipelines/"+id+"?branches=1000", "")
	is.True(count(tree.body["jobs"].([]any)) <= 1000) // out of 1,260 jobs
	is.True(count(tree.body["jobs"].([]any)) >= 35)
}
