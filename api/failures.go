package api

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/failures"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

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
		return failures.List{}, response.Invalid("since: %s", err)
	}
	return storeview.Failures(c.ctx(), c.lists, since, c.caller.Owner(access.JobsRead))
}
