package api

import (
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

var retentionRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/retention", Needs: access.WorkersView, Summary: "List kinds with their own retention",
		out: object("retention", listOf(of[job.Retention]())), do: listRetention},
	{Method: http.MethodPut, Path: "/admin/workers/retention/:kind/:state", Needs: access.WorkersManage, Summary: "Set how long finished jobs of a kind and state are kept",
		in: keep{}, out: of[job.RetentionChanged](), do: putRetention},
	{Method: http.MethodDelete, Path: "/admin/workers/retention/:kind/:state", Needs: access.WorkersManage, Summary: "Remove the retention of a kind and state; the default applies",
		out: of[job.RetentionChanged](), do: deleteRetention},
}

func listRetention(c *call) (any, error) {
	found, err := c.r.Admin().Retentions(c.ctx())
	return map[string]any{"retention": orEmpty(found)}, err
}

// keep is the body of a PUT request.
type keep struct {
	Keep *job.Seconds `json:"keep_s"` // 0 means forever
}

func putRetention(c *call) (any, error) {
	body, err := readBody[keep](c)
	if err == nil && body.Keep == nil {
		err = response.Invalid("keep_s is required: seconds, or 0 for forever")
	}
	if err != nil {
		return nil, err
	}
	return setRetention(c, body.Keep)
}

func deleteRetention(c *call) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	return setRetention(c, nil)
}

func setRetention(c *call, keep *job.Seconds) (any, error) {
	return c.r.Admin().SetRetention(c.ctx(), c.Param("kind"), job.State(c.Param("state")), (*time.Duration)(keep), c.caller.Name)
}
