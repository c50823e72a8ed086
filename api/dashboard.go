package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// mountDashboard puts the dashboard at /ui/ below g. Its pages ask for permissions themselves, and answer with pages.
func (s *server) mountDashboard(g *echo.Group) {
	pages := ui.New(ui.Options{Store: s.lists, Calendar: s.r, Visitor: s.visitor, Shown: s.shown, ShownSchedule: s.shownSetting, Sessions: s.opts.Login != nil})
	g.GET("/ui", s.serve(Route{Method: http.MethodGet, Path: "/ui", Needs: access.Nothing, do: func(_ *server, c echo.Context) error {
		// Relative, for the prefix may be one that only a proxy in front of us knows.
		c.Response().Header().Set("Location", "ui/")
		return c.NoContent(http.StatusMovedPermanently)
	}}))
	g.GET("/ui/*", s.serve(Route{Method: http.MethodGet, Path: "/ui/*", Needs: access.Nothing, do: func(_ *server, c echo.Context) error {
		below := c.Request().Clone(c.Request().Context())
		below.URL.Path, below.URL.RawPath = "/"+c.Param("*"), ""
		pages.ServeHTTP(c.Response(), below)
		return nil
	}}))
}

// shown is the job that a page shows, as its visitor may see it.
func (s *server) shown(request *http.Request, to access.Principal, j job.Job) (job.Job, error) {
	v := s.view(to)
	shown := v.job(j)
	return shown, s.readings.note(request, v, "job "+idText(j.ID))
}

// shownSetting is the schedule that a page shows, as its visitor may see it.
func (s *server) shownSetting(request *http.Request, to access.Principal, name string, one job.ScheduleSetting) (job.ScheduleSetting, error) {
	v := s.view(to)
	shown := v.setting(name, one)
	return shown, s.readings.note(request, v, "schedule "+name)
}

// visitor finds out who looks at a page.
func (s *server) visitor(request *http.Request) (access.Principal, error) {
	if s.cutOff() {
		return access.Principal{}, store.ErrCutOff
	}
	p, err := s.who(request)
	if no, ok := errors.AsType[*problem](err); ok && (no.status == http.StatusUnauthorized || no.status == http.StatusTooManyRequests) {
		err = fmt.Errorf("%w: %w", access.ErrUnauthenticated, err)
	}
	return p, err
}
