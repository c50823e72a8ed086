package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/job"
)

func (s *server) fires(c echo.Context) error {
	before, limit := time.Time{}, 50
	err := eachFilter(c, func(name, value string, _ []string) (err error) {
		switch name {
		case "limit":
			limit, err = parseLimit(value)
		case "cursor":
			if value, err = cursor.Opened("fires", value); err == nil && value != "" {
				before, err = time.Parse(time.RFC3339Nano, value)
			}
		default:
			err = errNoFilter
		}
		return err
	})
	if err != nil {
		return err
	}
	list, err := s.r.ScheduleFiresBefore(c.Request().Context(), c.Param("name"), before, limit)
	if err != nil {
		return err
	}
	next := ""
	if len(list) == limit {
		next = cursor.Sealed("fires", list[len(list)-1].FireAt.Format(time.RFC3339Nano))
	}
	if list == nil {
		list = []job.Fire{}
	}
	return c.JSON(http.StatusOK, map[string]any{"fires": list, "next_cursor": next})
}
