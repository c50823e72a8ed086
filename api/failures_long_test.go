//go:build long

package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestJobPageAttemptErrors(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	long := "the last one: " + strings.Repeat("x", 3000) + " end of the long error"
	h := newHost(t, api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "thrice", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			switch j.Attempt() {
			case 1:
				return nil, job.RetryAfter(0, errors.New("the first error"))
			case 2:
				panic("the second error")
			}
			return nil, errors.New(long)
		})
	})
	id := h.submit(`{"kind":"thrice","max_attempts":3}`)
	h.until(id, job.Failed)
	attempts := func() string {
		page := h.send("GET", "/ui/jobs/"+id, "").text
		_, page, _ = strings.Cut(page, `id="h-attempts"`)
		page, _, _ = strings.Cut(page, "</section>")
		return page
	}
	shown := attempts()
	for _, want := range []string{"the first error", "panic: the second error", "goroutine ", "failures_long_test.go", "end of the long error"} {
		is.True(strings.Contains(shown, want)) // including the stack of the panic
	}
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", "").status, http.StatusAccepted)
	pgtest.Wait(t, "the retried job failed", func() bool {
		j := h.send("GET", "/jobs/"+id, "").body
		return j["epoch"] == 2.0 && j["state"] == "failed"
	})
	shown = attempts()
	is.Equal(strings.Count(shown, "the first error"), 2)
	is.Equal(strings.Count(shown, "end of the long error"), 2) // a retry keeps the whole error of the previous attempt
}
