package api

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/store"
)

var auditRoutes = []Route{
	{http.MethodGet, "/admin/audit", access.AuditRead, "List who did what, or was refused it, newest first", (*server).audit},
}

func (s *server) audit(c echo.Context) error {
	f, err := auditFilterOf(c)
	if err != nil {
		return err
	}
	list, err := s.lists.AuditTrail(c.Request().Context(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(list) == f.Limit {
		next = cursor.Sealed("audit", strconv.FormatInt(list[len(list)-1].ID, 10))
	}
	if list == nil {
		list = []store.AuditRow{}
	}
	return c.JSON(http.StatusOK, map[string]any{"audit": list, "next_cursor": next})
}

// auditFilterOf reads the filters of the audit; one that is not known is an error.
func auditFilterOf(c echo.Context) (store.AuditFilter, error) {
	f := store.AuditFilter{Limit: 50}
	err := eachFilter(c, func(name, value string, _ []string) (err error) {
		switch name {
		case "actor":
			f.Actor, err = storable(value)
		case "action":
			f.Action, err = storable(value)
		case "target":
			f.Target, err = storable(value)
		case "before":
			if c.QueryParam("cursor") == "" { // which goes on from there
				f.Before, err = ParseID(value)
			}
		case "limit":
			f.Limit, err = parseLimit(value)
		case "cursor":
			if value, err = cursor.Opened("audit", value); err == nil && value != "" {
				f.Before, err = ParseID(value)
			}
		default:
			err = errNoFilter
		}
		return err
	})
	return f, err
}

// storable refuses text that PostgreSQL cannot compare with its own.
func storable(text string) (string, error) {
	if bounded(text, len(text)) != text {
		return "", errText
	}
	return text, nil
}
