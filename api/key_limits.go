package api

import (
	"net/http"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

var keyLimitRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/limits", Needs: access.WorkersView, Summary: "List the limits of keys in lanes and of kinds",
		query: []string{"scope", "name", "key", "limit", "cursor"}, out: page("limits", of[job.KeyLimit]()), do: listKeyLimits},
	{Method: http.MethodPut, Path: "/admin/workers/limits", Needs: access.WorkersManage, Summary: "Create or replace a limit of a key, or of each key",
		in: job.KeyLimitChange{}, out: of[job.KeyLimitChanged](), do: withBody(func(c *call, change job.KeyLimitChange) (any, error) {
			return c.admin().SetLimit(c.ctx(), change.Whole())
		})},
	{Method: http.MethodPatch, Path: "/admin/workers/limits", Needs: access.WorkersManage, Summary: "Create a limit of a key, or of each key, or change some of its values",
		in: job.KeyLimitChange{}, out: of[job.KeyLimitChanged](), do: withBody(func(c *call, change job.KeyLimitChange) (any, error) {
			return c.admin().SetLimit(c.ctx(), change)
		})},
	{Method: http.MethodDelete, Path: "/admin/workers/limits", Needs: access.WorkersManage, Summary: "Remove a limit",
		query: []string{"scope", "name", "key"}, out: of[job.KeyLimitChanged](), do: removeKeyLimit},
	{Method: http.MethodGet, Path: "/admin/workers/limits/usage", Needs: access.WorkersView, Summary: "List the keys that wait most, the places that they use, and the limits that bind",
		query: []string{"lane", "kind", "key"}, out: of[job.KeysInUse](), do: func(c *call) (any, error) {
			return storeview.KeysInUse(c.ctx(), c.lists, c.QueryParam("lane"), c.QueryParam("kind"), c.QueryParam("key"))
		}},
}

func listKeyLimits(c *call) (any, error) {
	limit, err := limitOf(c, 50)
	if err != nil {
		return nil, err
	}
	cursor, err := text.DecodeCursor("limits", c.QueryParam("cursor"))
	if err != nil {
		return nil, invalid("cursor: %s", err)
	}
	after := job.LimitOf{}
	if parts := strings.SplitN(cursor, "\n", 3); len(parts) == 3 { // neither a scope nor the name of a lane or kind contains a line break
		after = job.LimitOf{Scope: parts[0], Name: parts[1], Key: parts[2]}
	}
	found, err := c.admin().Limits(c.ctx(), keyLimitParams(c), after, limit)
	return pageOf("limits", found, limit, func(last job.KeyLimit) string {
		return text.EncodeCursor("limits", last.Scope+"\n"+last.Name+"\n"+last.Key)
	}), err
}

func removeKeyLimit(c *call) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	return c.admin().RemoveLimit(c.ctx(), keyLimitParams(c))
}

func keyLimitParams(c *call) job.LimitOf {
	return job.LimitOf{Scope: c.QueryParam("scope"), Name: c.QueryParam("name"), Key: c.QueryParam("key")}
}
