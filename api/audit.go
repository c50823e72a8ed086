package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/text"
)

var auditRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/audit", Needs: access.AuditRead, Summary: "List audit entries, newest first, including rejected actions",
		query: []string{"actor", "action", "target", "before", "limit", "cursor"}, out: page("audit", of[admin.AuditRow]()), do: listAudit},
}

func listAudit(c *call) (any, error) {
	f, err := auditFilterOf(c)
	if err != nil {
		return nil, err
	}
	found, err := admin.AuditTrail(c.ctx(), c.lists, f)
	return pageOf("audit", found, f.Limit, func(last admin.AuditRow) string { return text.EncodeCursor("audit", idText(last.ID)) }), err
}

// auditFilterOf reads the filters of an audit log query.
func auditFilterOf(c echo.Context) (admin.AuditFilter, error) {
	f := admin.AuditFilter{Limit: 50}
	err := eachFilter(c, func(name, value string, _ []string) (err error) {
		switch name {
		case "actor":
			f.Actor = value
		case "action":
			f.Action = value
		case "target":
			f.Target = value
		case "before":
			if c.QueryParam("cursor") == "" { // a cursor takes precedence over before
				f.Before, err = text.ParseID(value)
			}
		case "limit":
			f.Limit, err = text.ParseLimit(value)
		case "cursor":
			if value, err = text.DecodeCursor("audit", value); err == nil && value != "" {
				f.Before, err = text.ParseID(value)
			}
		}
		return err
	})
	return f, err
}
