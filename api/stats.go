package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

var statsRoutes = []Route{
	{Method: http.MethodGet, Path: "/stats", Needs: access.WorkersView, Summary: "Count the jobs that ended in a period, with wait and run times, by lane or kind",
		query: []string{"window", "by", "lane", "kind"}, out: of[job.Stats](), do: showStats},
}

func showStats(c *call) (any, error) {
	window, err := storeview.Window(c.QueryParam("window"))
	if err != nil {
		return nil, response.Invalid("%s", err)
	}
	by := storeview.StatsBy(c.QueryParam("by"))
	switch by {
	case "":
		by = storeview.ByKind
	case storeview.ByKind, storeview.ByLane:
	default:
		return nil, response.Invalid("by %q: want lane or kind", by)
	}
	found, err := storeview.ReadStats(c.ctx(), c.lists, storeview.StatsFilter{Window: window.Length, Lane: c.QueryParam("lane"), Kind: c.QueryParam("kind")})
	if err != nil {
		return nil, err
	}
	return found.By(by), nil
}

var kindRoutes = []Route{
	{Method: http.MethodGet, Path: "/kinds", Needs: access.WorkersView, Summary: "List kinds with their ended and open jobs, the pods that handle them, and their limits",
		query: []string{"window", "order"}, out: of[kindList](), do: listKinds},
}

// kindList is the response to GET /kinds.
type kindList struct {
	Kinds []job.KindUse `json:"kinds"` // at most mostKinds
	Total int           `json:"total"` // number of kinds
	Ended job.Stats     `json:"ended"` // statistics for all kinds combined
}

// mostKinds is the maximum number of kinds that one response lists.
const mostKinds = 1000

func listKinds(c *call) (any, error) {
	window, err := storeview.Window(c.QueryParam("window"))
	if err != nil {
		return nil, response.Invalid("%s", err)
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
