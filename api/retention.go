package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// retentionRoutes say which kinds are kept for another time than all others.
var retentionRoutes = []Route{
	{http.MethodGet, "/admin/workers/retention", access.WorkersView, "List the kinds that are kept for a time of their own", (*server).retentions},
	{http.MethodPut, "/admin/workers/retention/:kind/:state", access.WorkersManage, "Say for how long jobs of a kind are kept that ended in a state", (*server).putRetention},
	{http.MethodDelete, "/admin/workers/retention/:kind/:state", access.WorkersManage, "Keep jobs of a kind that ended in a state as all others", (*server).deleteRetention},
}

func (s *server) retentions(c echo.Context) error {
	list, err := s.r.Retentions(c.Request().Context())
	if list == nil {
		list = []job.Retention{}
	}
	return answer(c, map[string]any{"retention": list}, err)
}

// keep is the body of PUT.
type keep struct {
	KeepS *int64 `json:"keep_s"` // 0: for ever
}

func (s *server) putRetention(c echo.Context) error {
	var body keep
	err := readBody(c, &body, true)
	if err == nil && body.KeepS == nil {
		err = invalid("keep_s is required: seconds, or 0 for ever")
	}
	if err != nil {
		return err
	}
	done, err := s.r.SetRetention(c.Request().Context(), c.Param("kind"), job.State(c.Param("state")), *body.KeepS, caller(c).Name)
	return answer(c, done, err)
}

func (s *server) deleteRetention(c echo.Context) error {
	if err := nothingAsked(c); err != nil {
		return err
	}
	done, err := s.r.UnsetRetention(c.Request().Context(), c.Param("kind"), job.State(c.Param("state")), caller(c).Name)
	return answer(c, done, err)
}
