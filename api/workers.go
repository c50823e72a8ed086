package api

import (
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Worker is who may run jobs as a remote worker.
type Worker struct {
	Name string
	Kind func(name string) bool // which kinds
	Lane func(name string) bool // from which lanes

	// Refused writes down that he asked for something that he may not run, as refusals of routes are.
	Refused func(why string)
}

// Workers returns what tells who speaks for a remote worker: somebody with the permission workers:stream, by the same means as in
// requests to the API. Its errors are those of gRPC.
func Workers(r *runner.Runner, o Options) func(*http.Request) (Worker, error) {
	if o.Authenticate == nil {
		if !o.InsecureAllowAll {
			panic("api: nobody says who may run jobs: set Options.Authenticate, or InsecureAllowAll")
		}
		o.Authenticate = o.allowAll
	}
	o = o.withRates()
	s := &server{r: r, opts: o, pages: http.NewCrossOriginProtection(), rights: newRights(r.Store()), refusals: newRefusals(r.Store()),
		strangers: newStrangers(o)}
	return s.worker
}

// worker authenticates a call of a remote worker. A refusal is audited as on other routes. Calls without
// valid credentials count for the address that they came from, see [strangers]. Calls that are let through count for their principal alone.
func (s *server) worker(request *http.Request) (Worker, error) {
	to := Route{Method: http.MethodPost, Path: request.URL.Path, Needs: access.WorkersStream}
	from := s.originOfCall(request)
	request = request.WithContext(job.WithOrigin(request.Context(), from))
	p, err := s.mayStream(request, to)
	if err == nil {
		request := request.WithContext(access.Into(request.Context(), p))
		refused := func(why string) { s.refusals.note(request, to, forbidden(why)) }
		return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse, Refused: refused}, nil
	}
	s.refusals.note(request.WithContext(access.Into(request.Context(), p)), to, err)
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
	return Worker{}, connect.NewError(connect.CodeUnavailable, errors.New("it cannot be told now who you are: try again"))
}

// mayStream lets a call of a remote worker through, or says why not. An error with a principal is about him.
func (s *server) mayStream(request *http.Request, to Route) (p Principal, err error) {
	if err := s.guard(request, to); err != nil {
		return p, err
	}
	if p, err = s.who(request); err != nil {
		return Principal{}, err
	}
	if may, _ := p.Can(to.Needs); !may {
		return p, forbidden("it needs the permission " + string(to.Needs))
	}
	return p, nil
}

func forbidden(why string) error {
	return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", detail: why, refused: true}
}

// inWords is an error as gRPC tells it, which has no place for a detail of its own.
func inWords(err error) error {
	if p := problemOf(err); p.detail != "" {
		return fmt.Errorf("%w: %s", err, p.detail)
	}
	return err
}
