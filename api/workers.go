package api

import (
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Worker is a principal that may run jobs as a remote worker.
type Worker struct {
	Name string
	Kind func(name string) bool // which kinds
	Lane func(name string) bool // from which lanes

	// Refused audits that it asked for something that it may not run, as refusals of routes are.
	Refused func(why string)
}

// Workers returns the authentication of remote workers' calls: by a principal with the permission workers:stream, by the same means as in
// requests to the API. Its errors are those of gRPC.
func Workers(r *runner.Runner, o Options) func(*http.Request) (Worker, error) {
	return newDoor(inside.Of(r).Store, o.withDefaults()).worker
}

// worker authenticates a call of a remote worker. A refusal is audited as on other routes. Calls without
// valid credentials count for the address that they came from, see [strangers]. Calls that are let through count for their principal alone.
func (d *door) worker(request *http.Request) (Worker, error) {
	to := Route{Method: http.MethodPost, Path: request.URL.Path, Needs: access.WorkersStream}
	from := d.originOfCall(request)
	request = request.WithContext(job.WithOrigin(request.Context(), from))
	p, err := d.mayStream(request, to)
	if err == nil {
		request := request.WithContext(access.Into(request.Context(), p))
		refused := func(why string) { d.refusals.note(request, to, forbidden("%s", why)) }
		return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse, Refused: refused}, nil
	}
	d.refusals.note(request.WithContext(access.Into(request.Context(), p)), to, err)
	switch is := problemOf(err); {
	case is.status == http.StatusTooManyRequests:
		return Worker{}, connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: %w", inWords(err)))
	case is.refused, is.status == http.StatusUnauthorized, is.status == http.StatusForbidden:
		code := connect.CodePermissionDenied
		if is.status == http.StatusUnauthorized {
			code = connect.CodeUnauthenticated
		}
		return Worker{}, connect.NewError(code, inWords(err))
	}
	return Worker{}, connect.NewError(connect.CodeUnavailable, errors.New("authentication is unavailable: try again"))
}

// mayStream lets a call of a remote worker through, or returns why not. An error with a principal is about that one.
func (d *door) mayStream(request *http.Request, to Route) (p Principal, err error) {
	if err := d.guard(request, to); err != nil {
		return p, err
	}
	if p, err = d.who(request); err != nil {
		return Principal{}, err
	}
	if may, _ := p.Can(to.Needs); !may {
		return p, forbidden("permission %s is required", to.Needs)
	}
	return p, nil
}

// inWords returns an error with its detail in the text, for gRPC.
func inWords(err error) error {
	if p := problemOf(err); p.detail != "" {
		return fmt.Errorf("%w: %s", err, p.detail)
	}
	return err
}
