package api

import (
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/access"
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
	s := &server{r: r, opts: o, pages: http.NewCrossOriginProtection(), rights: newRights(r.Store())}
	return func(request *http.Request) (Worker, error) {
		if err := s.guard(request, Route{Method: http.MethodPost}); err != nil {
			return Worker{}, connect.NewError(connect.CodePermissionDenied, err)
		}
		p, err := s.who(request)
		if err != nil {
			code := connect.CodeUnavailable
			if problemOf(err).status == http.StatusUnauthorized {
				code = connect.CodeUnauthenticated
			}
			return Worker{}, connect.NewError(code, inWords(err))
		}
		if may, _ := p.Can(access.WorkersStream); !may {
			return Worker{}, connect.NewError(connect.CodePermissionDenied, inWords(&problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this",
				detail: "it needs the permission " + string(access.WorkersStream)}))
		}
		return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse}, nil
	}
}

// inWords is an error as gRPC tells it, which has no place for a detail of its own.
func inWords(err error) error {
	if p := problemOf(err); p.detail != "" {
		return fmt.Errorf("%w: %s", err, p.detail)
	}
	return err
}
