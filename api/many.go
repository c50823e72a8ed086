package api

import (
	"context"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var manyRoutes = []Route{
	{Method: http.MethodPost, Path: "/admin/workers/jobs/cancel", Needs: access.WorkersManage, right: access.JobsCancel, Summary: "Cancel all jobs that match a filter",
		in: Selection{}, out: of[Many](), do: func(c *call) (any, error) { return forMany(c, c.r.Admin().CancelMany) }},
	{Method: http.MethodPost, Path: "/admin/workers/jobs/retry", Needs: access.WorkersManage, right: access.JobsRetry, Summary: "Retry all failed jobs that match a filter",
		in: Selection{}, out: of[Many](), do: func(c *call) (any, error) { return forMany(c, c.r.Admin().RetryMany) }},
	{Method: http.MethodPost, Path: "/failures/retry", Needs: access.JobsRetry, scope: ownJobs, Summary: "Retry exactly the jobs of a group of failures",
		in: Selection{}, out: of[Many](), do: retryFailures},
}

// Selection is the body of a bulk command. Its filter must not be empty.
type Selection struct {
	Filter struct {
		State      []string `json:"state,omitempty"`
		Kind       string   `json:"kind,omitempty"`
		Lane       string   `json:"lane,omitempty"`
		Subject    string   `json:"subject,omitempty"`
		Pipeline   string   `json:"pipeline,omitempty"`
		Parent     string   `json:"parent,omitempty"`
		Since      string   `json:"since,omitempty"` // RFC 3339, or a duration before now, such as 90m
		Reason     string   `json:"reason,omitempty"`
		ErrorClass string   `json:"error_class,omitempty"`
		ErrorCode  string   `json:"error_code,omitempty"`
		Children   *bool    `json:"children,omitempty"` // false excludes children of fan-outs
		Failures   string   `json:"failures,omitempty"` // the set value of a failure group from GET /failures; for retries only, without other filters
	} `json:"filter"`
	DryRun bool `json:"dry_run"` // only count the jobs and list a sample
}

// Jobs returns the filter of the selected jobs. now is the time that a relative time refers to.
func (s Selection) Jobs(now time.Time) (f job.Filter, err error) {
	f.Kind, f.Lane, f.Subject, f.Children = s.Filter.Kind, s.Filter.Lane, s.Filter.Subject, s.Filter.Children
	if len(s.Filter.State) > 0 {
		if f.States, err = text.ParseStates(s.Filter.State); err != nil {
			return f, err
		}
	}
	for _, id := range []struct {
		text string
		into *int64
	}{{s.Filter.Pipeline, &f.Pipeline}, {s.Filter.Parent, &f.Parent}} {
		if id.text == "" {
			continue
		}
		if *id.into, err = text.ParseID(id.text); err != nil {
			return f, err
		}
	}
	f.Failures = s.Filter.Failures
	f.Reason, f.ErrorClass, f.ErrorCode = job.Reason(s.Filter.Reason), job.ErrorClass(s.Filter.ErrorClass), s.Filter.ErrorCode
	if err := f.Validate(); err != nil {
		return f, err
	}
	if s.Filter.Since != "" {
		f.Since, err = text.ParseSince(s.Filter.Since, now)
	}
	return f, err
}

// Many is the response to a bulk command.
type Many struct {
	Matched int      `json:"matched"` // number of selected jobs
	Sample  []string `json:"sample"`  // the IDs of the first selected jobs
	More    bool     `json:"more"`    // more jobs match; repeat the command
	DryRun  bool     `json:"dry_run"`
	Done    int      `json:"done"`
	Skipped int      `json:"skipped"` // number of skipped jobs: already finished, changed concurrently, or not retryable
}

// retryFailures retries a group of failures. A caller who may retry only its own jobs can select only groups without other principals'
// failures.
func retryFailures(c *call) (any, error) {
	return forMany(c, func(ctx context.Context, f runner.Filter, dryRun bool, actor string) (runner.Many, error) {
		if f.Failures == "" {
			return runner.Many{}, response.Invalid("filter: failures is missing: want the set value of a failure group from GET /failures")
		}
		f.Owner = c.caller.Owner(access.JobsRetry)
		return c.r.Admin().RetryMany(ctx, f, dryRun, actor)
	})
}

func forMany(c *call, do func(context.Context, runner.Filter, bool, string) (runner.Many, error)) (any, error) {
	body, err := readBody[Selection](c)
	if err != nil {
		return nil, err
	}
	now, err := c.now(body.Filter.Since)
	if err != nil {
		return nil, err
	}
	filter, err := body.Jobs(now)
	if err != nil {
		return nil, response.Invalid("filter: %s", err)
	}
	m, err := do(c.ctx(), filter, body.DryRun, c.caller.Name)
	return Many{Matched: m.Matched, Sample: idTexts(m.Sample), More: m.More, DryRun: m.DryRun, Done: m.Done, Skipped: m.Skipped}, err
}
