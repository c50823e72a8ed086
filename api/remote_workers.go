package api

import (
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Worker is a principal that may run jobs as a remote worker.
type Worker struct {
	Name string
	Kind func(name string) bool // reports whether the worker may run a kind
	Lane func(name string) bool // reports whether the worker may claim from a lane

	// Refused records in the audit log that the worker requested a kind that it may not run.
	Refused func(why string)
}

// Workers returns a function that authenticates calls from remote workers. Calls are authenticated like API requests, and the principal
// must have the workers:stream permission. The function returns gRPC errors.
func Workers(r *runner.Runner, o Options) func(*http.Request) (Worker, error) {
	return newDoor(inside.Of(r).Store, o.withDefaults()).worker
}

// worker authenticates a call from a remote worker. Rejections are audited as on other routes. Calls without valid credentials count
// against the limit for their address (see [strangers]). Admitted calls are not limited, because a worker sends heartbeats and writes
// frequently.
func (d *door) worker(request *http.Request) (Worker, error) {
	route := Route{Method: http.MethodPost, Path: request.URL.Path, Needs: access.WorkersStream}
	from := d.originOfCall(request)
	request = request.WithContext(job.WithOrigin(request.Context(), from))
	p, err := d.mayStream(request, route)
	if err == nil {
		request := request.WithContext(access.Into(request.Context(), p))
		refused := func(why string) { d.refusals.note(request, route, response.Forbidden("%s", why)) }
		return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse, Refused: refused}, nil
	}
	d.refusals.note(request.WithContext(access.Into(request.Context(), p)), route, err)
	switch is := response.ProblemOf(err); {
	case is.Status == http.StatusTooManyRequests:
		return Worker{}, connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: %w", withDetail(err)))
	case is.Refused, is.Status == http.StatusUnauthorized, is.Status == http.StatusForbidden:
		code := connect.CodePermissionDenied
		if is.Status == http.StatusUnauthorized {
			code = connect.CodeUnauthenticated
		}
		return Worker{}, connect.NewError(code, withDetail(err))
	}
	return Worker{}, connect.NewError(connect.CodeUnavailable, errors.New("authentication is unavailable: try again"))
}

// mayStream admits a call from a remote worker, or returns the reason for the rejection. If it returns both an error and a principal, the
// principal lacks the permission.
func (d *door) mayStream(request *http.Request, route Route) (p Principal, err error) {
	if err := d.guard(request, route); err != nil {
		return p, err
	}
	if p, err = d.who(request); err != nil {
		return Principal{}, err
	}
	if may, _ := p.Can(route.Needs); !may {
		return p, response.Forbidden("permission %s is required", route.Needs)
	}
	return p, nil
}

// withDetail returns an error whose text includes its detail, because gRPC transmits only the text.
func withDetail(err error) error {
	if p := response.ProblemOf(err); p.Detail != "" {
		return fmt.Errorf("%w: %s", err, p.Detail)
	}
	return err
}
