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
}

// Workers returns what tells who speaks for a remote worker: somebody with the permission workers:stream, by the same means as in
// requests to the API. Its errors are those of gRPC.
func Workers(r *runner.Runner, o Options) func(*http.Request) (Worker, error) {
	if o.Authenticate == nil {
		if !o.InsecureAllowAll {
			panic("api: nobody says who may run jobs: set Options.Authenticate, or InsecureAllowAll")
		}
		o.Authenticate = func(*http.Request) (Principal, error) { return anybody, nil }
	}
	s := &server{r: r, opts: o, pages: http.NewCrossOriginProtection(), rights: newRights(r.Store()), refusals: newRefusals(r.Store())}
	return s.worker
}

// worker finds out who speaks for a remote worker. That somebody was refused is written down as it is of other routes.
func (s *server) worker(request *http.Request) (Worker, error) {
	to := Route{Method: http.MethodPost, Path: request.URL.Path, Needs: access.WorkersStream}
	ctx := job.WithOrigin(request.Context(), s.originOfCall(request))
	err := s.guard(request, to)
	if err == nil {
		var p Principal
		if p, err = s.who(request); err == nil {
			if may, _ := p.Can(to.Needs); may {
				return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse}, nil
			}
			ctx = access.Into(ctx, p)
			err = &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", detail: "it needs the permission " + string(to.Needs), refused: true}
		}
	}
	s.refusals.note(request.WithContext(ctx), to, err)
	switch problemOf(err).status {
	case http.StatusUnauthorized:
		return Worker{}, connect.NewError(connect.CodeUnauthenticated, inWords(err))
	case http.StatusForbidden:
		return Worker{}, connect.NewError(connect.CodePermissionDenied, inWords(err))
	}
	return Worker{}, connect.NewError(connect.CodeUnavailable, errors.New("it cannot be told now who you are: try again"))
}

// inWords is an error as gRPC tells it, which has no place for a detail of its own.
func inWords(err error) error {
	if p := problemOf(err); p.detail != "" {
		return fmt.Errorf("%w: %s", err, p.detail)
	}
	return err
}
