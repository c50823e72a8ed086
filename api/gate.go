package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/job"
)

func (s *server) pods(c echo.Context) error {
	closed, err := boolParam(c, "all")
	if err != nil {
		return err
	}
	list, err := s.lists.Pods(c.Request().Context(), closed)
	if list == nil {
		list = []job.Pod{}
	}
	return answer(c, map[string]any{"pods": list}, err)
}

func (s *server) drainPod(c echo.Context) error {
	wait, err := waitOf(c)
	if err != nil {
		return err
	}
	quiet, err := s.r.DrainPod(c.Request().Context(), c.Param("id"), wait, caller(c).Name)
	return answer(c, quiet, err)
}

func (s *server) resumePod(c echo.Context) error {
	return s.open(c, func(ctx context.Context, actor string) (bool, error) {
		return s.r.ResumePod(ctx, c.Param("id"), actor)
	})
}

func (s *server) freeze(c echo.Context) error {
	wait, err := waitOf(c)
	if err != nil {
		return err
	}
	quiet, err := s.r.Freeze(c.Request().Context(), wait, caller(c).Name)
	return answer(c, quiet, err)
}

func (s *server) thaw(c echo.Context) error    { return s.open(c, s.r.Thaw) }
func (s *server) pause(c echo.Context) error   { return s.open(c, s.r.Pause) }
func (s *server) unpause(c echo.Context) error { return s.open(c, s.r.Unpause) }

// open answers a command that has nothing to wait for.
func (s *server) open(c echo.Context, do func(ctx context.Context, actor string) (bool, error)) error {
	if err := nothingAsked(c); err != nil {
		return err
	}
	news, err := do(c.Request().Context(), caller(c).Name)
	return answer(c, changed{news}, err)
}

func (s *server) status(c echo.Context) error {
	now, err := s.r.Status(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, now)
}
