package api

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/inside"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

var statsRoutes = []Route{
	{Method: http.MethodGet, Path: "/stats", Needs: access.WorkersView, Summary: "Count the jobs that ended in a period, with wait and run times, by lane or kind",
		query: []string{"window", "by", "lane", "kind"}, out: of[job.Stats](), do: showStats},
}

func showStats(c *call) (any, error) {
	window, err := storeview.Window(c.QueryParam("window"))
	if err != nil {
		return nil, invalid("%s", err)
	}
	by := storeview.StatsBy(c.QueryParam("by"))
	switch by {
	case "":
		by = storeview.ByKind
	case storeview.ByKind, storeview.ByLane:
	default:
		return nil, invalid("by %q: want lane or kind", by)
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
		return nil, invalid("%s", err)
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

var failureRoutes = []Route{
	{Method: http.MethodGet, Path: "/failures", Needs: access.JobsRead, scope: ownJobs, Summary: "List failed jobs grouped by kind and error, the largest group first",
		query: []string{"since", "kind", "limit"}, out: of[failureList](), do: listFailures},
	{Method: http.MethodGet, Path: "/failures/:id", Needs: access.JobsRead, scope: ownJobs, Summary: "Show a group of failed jobs",
		query: []string{"since", "limit"}, out: of[failureGroup](), do: showFailures},
}

// failureList is the response to GET /failures.
type failureList struct {
	failures.List
	Total int `json:"groups"` // the number of groups, which may exceed the limit
}

// failureGroup is the response to GET /failures/:id.
type failureGroup struct {
	failures.Group
	Members []failures.Job `json:"members"` // the latest failure first, up to the limit
}

// defaultFailures is the default period of a failure list.
const defaultFailures = "24h"

func listFailures(c *call) (any, error) {
	limit, err := limitOf(c, 50)
	if err != nil {
		return nil, err
	}
	list, err := readFailures(c)
	if err != nil {
		return nil, err
	}
	if kind := c.QueryParam("kind"); kind != "" {
		list = list.OfKind(kind)
	}
	found := failureList{list, len(list.Groups)}
	found.Groups = orEmpty(list.Groups[:min(len(list.Groups), limit)])
	return found, nil
}

func showFailures(c *call) (any, error) {
	limit, err := limitOf(c, 50)
	if err != nil {
		return nil, err
	}
	list, err := readFailures(c)
	if err != nil {
		return nil, err
	}
	group, members, found := list.Of(c.Param("id"))
	if !found {
		return nil, fmt.Errorf("group %.50q: %w", c.Param("id"), job.ErrNotFound)
	}
	return failureGroup{group, members[:min(len(members), limit)]}, nil
}

func readFailures(c *call) (failures.List, error) {
	from := cmp.Or(c.QueryParam("since"), defaultFailures)
	now, err := c.now(from)
	if err != nil {
		return failures.List{}, err
	}
	since, err := text.ParseSince(from, now)
	if err != nil {
		return failures.List{}, invalid("since: %s", err)
	}
	return storeview.Failures(c.ctx(), c.lists, since, c.caller.Owner(access.JobsRead))
}

var doctorRoutes = []Route{
	{Method: http.MethodGet, Path: "/doctor", Needs: access.WorkersView, Summary: "Check the server, tables, pods, lanes and schedules",
		query: []string{"transactions", "overdue"}, out: object("findings", listOf(of[doctor.Finding]())), do: examine},
}

func examine(c *call) (any, error) {
	var t doctor.Thresholds
	var err error
	if t.Transaction, err = ageParam(c, "transactions"); err != nil {
		return nil, err
	}
	if t.Overdue, err = ageParam(c, "overdue"); err != nil {
		return nil, err
	}
	found, err := inside.Of(c.r).Pod.Examine(c.ctx(), c.lists, t)
	return map[string]any{"findings": found}, err
}

// ageParam reads a threshold for the doctor checks.
func ageParam(c *call, name string) (time.Duration, error) {
	text := c.QueryParam(name)
	if text == "" {
		return doctor.DefaultThreshold, nil
	}
	age, err := time.ParseDuration(text)
	if err != nil || age < 0 {
		return 0, invalid("%s %q: want a duration of 0 or more, such as 5m", name, text)
	}
	return age, nil
}
