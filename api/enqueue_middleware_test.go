package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A job submitted over HTTP passes through the enqueue middleware of the receiving pod. The middleware sees the client's name, and the
// client sees the reason for a rejection.
func TestEnqueueMiddlewareOverHTTP(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var submitters []string
	r, err := runner.New(pool, runner.Options{Logger: slog.New(slog.DiscardHandler), EnqueueMiddleware: []runner.EnqueueMiddleware{
		func(ctx context.Context, jobs []runner.Submission, next func(context.Context) ([]runner.Submitted, error)) ([]runner.Submitted, error) {
			submitters = append(submitters, jobs[0].Submitter)
			if jobs[0].Subject == nil {
				return nil, fmt.Errorf("%w: %s without a subject", job.ErrInvalid, jobs[0].Kind)
			}
			return next(ctx)
		},
	}})
	is.NoErr(err)
	t.Cleanup(r.Close)
	runner.HandleRaw(r, "echo", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	post := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		request := httptest.NewRequest("POST", "/jobs", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		api.Handler(r, api.Options{Authenticate: authenticateAs("ana", "platform_admin")}).ServeHTTP(w, request)
		return w
	}
	refused := post(`{"kind":"echo"}`)
	is.Equal(refused.Code, http.StatusBadRequest)
	is.True(strings.Contains(refused.Body.String(), "echo without a subject"))
	is.Equal(post(`{"kind":"echo","subject":"s"}`).Code, http.StatusAccepted)
	is.Equal(submitters, []string{"ana", "ana"})
	var n int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.jobs`).Scan(&n))
	is.Equal(n, 1)
}
