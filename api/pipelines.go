package api

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var pipelineRoutes = []Route{
	{Method: http.MethodGet, Path: "/pipelines", Needs: access.JobsRead, scope: ownJobs, Summary: "List pipelines, newest first",
		query: []string{"status", "name", "since", "limit", "cursor"}, out: page("pipelines", of[job.Pipeline]()), do: listPipelines},
	{Method: http.MethodGet, Path: "/pipelines/:id", Needs: access.JobsRead, scope: jobInPath, Summary: "Show a pipeline with its jobs and their fan-outs",
		query: []string{"branches"}, do: onJob(showPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/abort", Needs: access.JobsCancel, scope: jobInPath, Summary: "Cancel all unfinished jobs of a pipeline",
		do: onJob(abortPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/retry", Needs: access.JobsRetry, scope: jobInPath, Summary: "Retry a pipeline from the step that failed",
		in: again{}, optional: true, statuses: []int{http.StatusAccepted}, do: onJob(retryPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/children/retry", Needs: access.JobsRetry, scope: jobInPath, Summary: "Retry the failed children of a pipeline",
		out: of[childrenRetried](), statuses: []int{http.StatusAccepted}, do: onJob(retryChildren)},
}

// Tree is the response to GET /pipelines/:id.
type (
	Tree    = job.Tree
	TreeJob = job.TreeJob
)

func listPipelines(c *call) (any, error) {
	filter, err := pipelineFilterOf(c)
	if err != nil {
		return nil, err
	}
	filter.Owner = c.caller.Owner(access.JobsRead)
	found, err := storeview.Pipelines(c.ctx(), c.lists, filter)
	if err != nil {
		return nil, err
	}
	return c.presentPage("pipelines", found.Pipelines, found.Cursor, found.Searched)
}

// pipelineFilterOf parses the filters of a pipeline list.
func pipelineFilterOf(c *call) (f storeview.PipelineFilter, err error) {
	now, err := c.now(c.QueryParam("since"))
	if err != nil {
		return f, err
	}
	err = eachFilter(c, func(name, value string, values []string) (err error) {
		switch name {
		case "status":
			f.Statuses, err = text.ParseStatuses(values)
		case "name":
			f.Name = value
		case "since":
			f.Since, err = text.ParseSince(value, now)
		case "limit":
			f.Limit, err = text.ParseLimit(value)
		case "cursor":
			f.Cursor, err = text.DecodeCursor("pipelines", value)
		}
		return err
	})
	return f, err
}

// defaultBranches is the default number of children shown for each fan-out. maxBranches is the maximum.
const (
	defaultBranches = 5
	maxBranches     = 1000
)

func showPipeline(c *call, id int64) (any, error) {
	branches := defaultBranches
	if text := c.QueryParam("branches"); text != "" {
		var err error
		if branches, err = strconv.Atoi(text); err != nil || branches < 0 || branches > maxBranches {
			return nil, response.Invalid("branches %q: want 0 to %d", text, maxBranches)
		}
	}
	tree, err := storeview.ReadTree(c.ctx(), c.lists, id, storeview.TreeLimits{Children: branches})
	if err != nil {
		return nil, err
	}
	return c.present(tree)
}

func abortPipeline(c *call, id int64) (any, error) {
	ids, err := c.r.Admin().AbortPipeline(c.ctx(), id, c.caller.Name)
	return map[string]any{"pipeline": idText(id), "aborted": idTexts(ids)}, err
}

func retryPipeline(c *call, id int64) (any, error) {
	body, err := readOptional[again](c)
	if err == nil && body.Args != nil { // new arguments apply to the last job
		p, missing := c.r.Admin().Pipeline(c.ctx(), id)
		if err = missing; err == nil {
			err = mayChange(c, p.LastJob)
		}
	}
	if err != nil {
		return nil, err
	}
	ids, err := c.r.Admin().RetryPipeline(c.ctx(), id, c.caller.Name, body.otherArgs())
	return map[string]any{"pipeline": idText(id), "retried": idTexts(ids)}, err
}

// childrenRetried is the response to a request to retry failed children.
type childrenRetried struct {
	Pipeline int64 `json:"pipeline,string"`
	Retried  int   `json:"retried"`
	Skipped  int   `json:"skipped"` // children that could not be retried
	More     bool  `json:"more"`    // more children have failed; repeat the request
}

// retryChildren retries a partial or running pipeline's failed children. If the fan-out has already ended, only the children run again, not
// the join.
func retryChildren(c *call, id int64) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	p, err := c.r.Admin().Pipeline(c.ctx(), id)
	if err != nil {
		return nil, err
	}
	var did runner.Many
	if p.Status == job.PipelinePartial || p.Status == job.PipelineRunning { // in any other state, the failed jobs include the failed step
		did, err = c.r.Admin().RetryMany(c.ctx(), job.Filter{Pipeline: id, States: []job.State{job.Failed}}, false, c.caller.Name)
	}
	if err == nil && did.Matched == 0 {
		err = fmt.Errorf("retry the children of pipeline %d, status %s: %w", id, p.Status, job.ErrNotFailed)
	}
	return childrenRetried{Pipeline: id, Retried: did.Done, Skipped: did.Skipped, More: did.More}, err
}
