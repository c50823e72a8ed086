package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

var kindRoutes = []Route{
	{Method: http.MethodGet, Path: "/kinds", Needs: access.WorkersView, Summary: "List kinds with their ended and open jobs, the pods that handle them, and their limits",
		query: []string{"window", "order"}, out: of[kindList](), do: listKinds},
}

// kindList is the response to GET /kinds.
type kindList struct {
	Kinds []job.KindUse `json:"kinds"` // at most mostKinds
	Total int           `json:"total"` // number of kinds
	Ended job.Stats     `json:"ended"` // the numbers of all kinds together
}

// mostKinds is the maximum number of kinds that one response lists.
const mostKinds = 1000

func listKinds(c *call) (any, error) {
	window, err := windowOf(c.QueryParam("window"))
	if err != nil {
		return nil, err
	}
	found := kindList{}
	if found.Kinds, found.Ended, err = storeview.Kinds(c.ctx(), c.lists, window.Length); err != nil {
		return nil, err
	}
	if err := storeview.SortKinds(found.Kinds, c.QueryParam("order")); err != nil {
		return nil, err
	}
	found.Total, found.Kinds = len(found.Kinds), found.Kinds[:min(len(found.Kinds), mostKinds)]
	return found, nil
}
