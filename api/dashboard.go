package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// pageRoutes returns the routes of the dashboard at /ui/. The pages check permissions themselves, and report errors as HTML.
func (s *service) pageRoutes() []Route {
	pages := ui.New(ui.Options{Store: s.lists, Calendar: s.r.Admin(), Visitor: s.visitor, Shown: s.jobShown, ShownSchedule: s.scheduleShown, Searched: s.secrets.searched, Sessions: s.opts.Login != nil,
		Challenge: s.opts.Challenge, FourEyes: s.fourEyes(), Examine: s.findings, Retention: s.retentionSettings(), Limits: s.limitSettings()})
	return []Route{
		{Method: http.MethodGet, Path: "/ui", Needs: access.Nothing, do: func(c *call) (any, error) {
			// The redirect is relative because the prefix may be known only to a proxy in front of the pod.
			c.Response().Header().Set("Location", "ui/")
			return nil, c.NoContent(http.StatusMovedPermanently)
		}},
		{Method: http.MethodGet, Path: "/ui/*", Needs: access.Nothing, do: func(c *call) (any, error) {
			below := c.Request().Clone(c.ctx())
			below.URL.Path, below.URL.RawPath = "/"+c.Param("*"), ""
			pages.ServeHTTP(c.Response(), below)
			return nil, nil
		}},
	}
}

// jobShown returns a job without the secrets that the visitor may not see.
func (s *service) jobShown(request *http.Request, to access.Principal, j job.Job) (job.Job, error) {
	v := s.secrets.view(to)
	shown := v.hideJob(j)
	return shown, s.secrets.readings.note(request, v, "job "+idText(j.ID))
}

// scheduleShown returns a schedule without the secrets that the visitor may not see.
func (s *service) scheduleShown(request *http.Request, to access.Principal, name string, one job.ScheduleSetting) (job.ScheduleSetting, error) {
	v := s.secrets.view(to)
	shown := v.hideSetting(name, one)
	return shown, s.secrets.readings.note(request, v, "schedule "+name)
}

// visitor authenticates the sender of a page request.
func (s *service) visitor(request *http.Request) (access.Principal, error) {
	if s.cutOff() {
		return access.Principal{}, store.ErrCutOff
	}
	p, err := s.door.who(request)
	if no, ok := errors.AsType[*problem](err); ok && (no.status == http.StatusUnauthorized || no.status == http.StatusTooManyRequests) {
		err = fmt.Errorf("%w: %w", access.ErrUnauthenticated, err)
	}
	return p, err
}
