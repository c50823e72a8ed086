package api

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// scoped are the routes without a job's id whose handlers themselves heed that a permission is for own jobs only: lists pass
// [access.Principal.Owner] to the store, and what is submitted is one's own. Every other route without a job's id is closed to such a
// principal.
var scoped = []string{
	"GET /events/stream",
	"GET /jobs",
	"GET /jobs/current",
	"POST /jobs",
	"GET /pipelines",
}

// caller is who sends the request: one who may do nothing on routes that need no permission.
func caller(c echo.Context) access.Principal { return access.Of(c.Request().Context()) }

// admit lets a request through to a route, or says why not. Nothing of its body has been read yet.
func (s *server) admit(c echo.Context, to Route) error {
	from := s.origin(c)
	ctx := job.WithOrigin(c.Request().Context(), from)
	c.SetRequest(c.Request().WithContext(ctx))
	if err := s.guard(c.Request(), to); err != nil {
		return err
	}
	if to.Needs == access.Nothing {
		return nil
	}
	p, err := s.who(c.Request())
	if err != nil {
		if problemOf(err).status == http.StatusUnauthorized {
			c.Response().Header().Set("WWW-Authenticate", `Bearer realm="trapeze"`)
		}
		return err
	}
	c.SetRequest(c.Request().WithContext(access.Into(ctx, p)))
	if to.changes() { // after who sends it is known, so that strangers at the same address take nothing from him
		if err := within(c, s.clients, neighbourhood(from.Source)); err != nil {
			return err
		}
	}
	if err := s.may(ctx, p, to, c.Param("id")); err != nil || !to.changes() {
		return err
	}
	return within(c, s.principals, p.Name)
}

// recheck asks again whether the sender of an admitted request may still use its route: for streams, which outlive tokens and grants.
func (s *server) recheck(c echo.Context, to Route) error {
	p, err := s.who(c.Request())
	if err != nil {
		return err
	}
	return s.may(c.Request().Context(), p, to, c.Param("id"))
}

// who finds out who sends a request and what he may do.
func (s *server) who(request *http.Request) (access.Principal, error) {
	p, err := s.opts.Authenticate(request)
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return p, s.strangers.refuse(request, s.client(request), err)
	}
	rights, err := s.rights.of(request.Context(), p)
	return p.With(rights), err
}

// may says whether a principal may use a route on what the id in its path names.
func (s *server) may(ctx context.Context, p access.Principal, to Route, id string) error {
	own := false
	for _, what := range to.needs() {
		allowed, only := p.Can(what)
		if !allowed {
			return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", detail: "it needs the permission " + string(what), refused: true}
		}
		own = own || only
	}
	switch {
	case !own:
		return nil
	case to.ofJob():
		return s.mustOwn(ctx, p, id)
	case !slices.Contains(scoped, to.Method+" "+to.Path):
		return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", detail: "your permissions are for your own jobs only", refused: true}
	}
	return nil
}

// mustOwn answers for somebody else's job as for one that does not exist.
func (s *server) mustOwn(ctx context.Context, p access.Principal, text string) error {
	id, err := ParseID(text)
	if err != nil {
		return fmt.Errorf("%w: %w", job.ErrNotFound, err)
	}
	owner, err := s.r.Store().Owner(ctx, id)
	if err == nil && owner != p.Name {
		p := *problemOf(fmt.Errorf("read job %d: %w", id, job.ErrNotFound))
		p.refused = true
		return &p
	}
	return err
}

// ofJob reports whether the id in the route's path is that of a job or a pipeline.
func (r Route) ofJob() bool {
	return strings.Contains(r.Path, "/jobs/:id") || strings.Contains(r.Path, "/pipelines/:id")
}

// needs are the permissions that the route needs: an operator's route to a job also needs the right to that job.
func (r Route) needs() []access.Permission {
	if !strings.HasPrefix(r.Path, "/admin/workers/jobs") {
		return []access.Permission{r.Needs}
	}
	right := access.JobsRead
	switch path.Base(r.Path) {
	case "cancel", "stop":
		right = access.JobsCancel
	case "retry":
		right = access.JobsRetry
	}
	return []access.Permission{r.Needs, right}
}

// changes reports whether the route may change anything.
func (r Route) changes() bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }
