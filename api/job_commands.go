package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	operators "github.com/trapeze-run/trapeze/runner/admin"
)

var jobCommandRoutes = []Route{
	{Method: http.MethodPost, Path: "/jobs/:id/cancel", Needs: access.JobsCancel, scope: jobInPath, Summary: "Cancel a job; returns a finished job unchanged",
		query: []string{"epoch"}, out: of[jobState](), statuses: []int{http.StatusOK, http.StatusAccepted}, do: onJob(cancelJob)},
	{Method: http.MethodPost, Path: "/admin/workers/jobs/:id/cancel", Needs: access.WorkersManage, right: access.JobsCancel, scope: jobInPath, Summary: "Cancel a job",
		query: []string{"epoch"}, out: of[jobState](), statuses: []int{http.StatusOK, http.StatusAccepted}, do: onJob(adminCancel)},
	{Method: http.MethodPost, Path: "/admin/workers/jobs/:id/force-cancel", Needs: access.WorkersManage, right: access.JobsCancel, scope: jobInPath,
		Summary: "End a job at once, without waiting for its handler", out: of[jobState](), do: onJob(adminStop)},
	{Method: http.MethodDelete, Path: "/jobs/:id", Needs: access.JobsCancel, scope: jobInPath,
		Summary: "Cancel a job that is not running, or delete a finished job, or a pipeline by the id of its first job",
		out:     object("id", textual, "deleted", whole, "state", textual), do: onJob(deleteJob)},
	{Method: http.MethodPost, Path: "/jobs/:id/stack", Needs: access.JobsStack, scope: jobInPath, Summary: "Read the stack of the handler of a running job",
		out: of[job.Stack](), do: onJob(readStack)},
	{Method: http.MethodPost, Path: "/jobs/:id/approve", Needs: access.JobsApprove, scope: jobInPath, Summary: "Approve a job that awaits approval",
		query: []string{"epoch"}, do: onJob(approveJob)},
	{Method: http.MethodPost, Path: "/jobs/:id/retry", Needs: access.JobsRetry, scope: jobInPath, Summary: "Retry a failed or cancelled job, optionally with other args",
		in: again{}, optional: true, statuses: []int{http.StatusAccepted}, do: onJob(retryJob)},
	{Method: http.MethodPost, Path: "/jobs/:id/complete", Needs: access.JobsSubmit, scope: jobInPath, Summary: "Complete a deferred job, or one part of it, with its token",
		in: completion{}, do: onJob(completeJob)},
	{Method: http.MethodPatch, Path: "/admin/workers/jobs/:id/priority", Needs: access.WorkersManage, right: access.JobsRead, scope: jobInPath,
		Summary: "Change the priority of a waiting job, or of the next steps of a running one", in: newPriority{}, do: onJob(setPriority)},
}

// jobState is the response to a request to cancel, stop or approve a job.
type jobState struct {
	ID    int64     `json:"id,string"`
	State job.State `json:"state"` // a cancelled job stays running until its handler returns
}

// cancelJob cancels a job. If the job has already ended, it returns the final state without an error.
func cancelJob(c *call, id int64) (any, error) {
	state, err := adminCancel(c, id)
	if errors.Is(err, job.ErrAlreadyTerminal) {
		err = nil
	}
	return state, err
}

func adminCancel(c *call, id int64) (any, error) {
	only, err := c.conditions()
	if err != nil {
		return nil, err
	}
	did, err := c.admin().Cancel(c.ctx(), id, only...)
	return stateReply(id, did.State), err
}

func adminStop(c *call, id int64) (any, error) {
	did, err := c.admin().ForceCancel(c.ctx(), id)
	return stateReply(id, did.State), err
}

func stateReply(id int64, state job.State) reply {
	status := http.StatusOK
	if state == job.Running {
		status = http.StatusAccepted
	}
	return reply{status, jobState{ID: id, State: state}}
}

// deleteJob deletes a finished job and cancels a waiting one. A running job must be cancelled first, because its handler may need time to
// stop. If a pod starts a waiting job before it can be cancelled, deleteJob requests its cancellation and reports the job as running.
func deleteJob(c *call, id int64) (any, error) {
	j, err := c.r.GetJob(c.ctx(), id)
	if err == nil && !j.State.Terminal() && j.State != job.Running {
		did, err := c.admin().Cancel(c.ctx(), id)
		return map[string]any{"id": idText(id), "deleted": 0, "state": did.State}, err
	}
	n, err := c.admin().Delete(c.ctx(), id)
	return map[string]any{"id": idText(id), "deleted": n}, err
}

func readStack(c *call, id int64) (any, error) {
	return c.admin().Stack(c.ctx(), id)
}

// conditions returns the conditions attached to a request to approve or cancel a job. The epoch query parameter limits the request to the
// arguments that the caller has seen.
func (c *call) conditions() (only []operators.Condition, err error) {
	text := c.QueryParam("epoch")
	if text == "" {
		return nil, nil
	}
	epoch, err := strconv.Atoi(text)
	if err != nil || epoch < 1 {
		return nil, invalid("epoch %q: want a whole number, at least 1", text)
	}
	return []operators.Condition{operators.InEpoch(epoch)}, nil
}

func approveJob(c *call, id int64) (any, error) {
	only, err := c.conditions()
	if err != nil {
		return nil, err
	}
	err = c.admin().Approve(c.ctx(), id, only...)
	if errors.Is(err, job.ErrOwnSubmission) {
		p := *problemOf(err)
		p.Refused = true
		err = &p
	}
	return jobState{ID: id, State: job.Pending}, err
}

// again is the body of a retry request. Without a body, the job keeps its arguments.
type again struct {
	Args json.RawMessage `json:"args"`
}

// otherArgs returns the new arguments of a retry, or nil if the job keeps its arguments.
func (a again) otherArgs() any {
	if a.Args == nil {
		return nil
	}
	return a.Args
}

// retryAnswer is the response to a retry.
type retryAnswer struct {
	ID      int64    `json:"id,string"`
	State   string   `json:"state"`
	Retried []string `json:"retried"` // the jobs that are pending again
}

func retryJob(c *call, id int64) (any, error) {
	body, err := readOptional[again](c)
	if err == nil && body.Args != nil {
		err = mayChange(c, id)
	}
	if err != nil {
		return nil, err
	}
	ids, err := c.admin().Retry(c.ctx(), id, body.otherArgs())
	if err != nil {
		return nil, err
	}
	state := job.Waiting // the job waits for its children, which run again
	if len(ids) == 1 && ids[0] == id {
		state = job.Pending
	} else if len(ids) == 0 {
		if j, err := c.r.GetJob(c.ctx(), id); err == nil && j.State == job.AwaitingApproval {
			state = j.State
		}
	}
	return retryAnswer{ID: id, State: string(state), Retried: idTexts(ids)}, nil
}

// mayChange rejects new arguments for a later step of an approved pipeline, unless the caller may approve the step without another person.
// The first job's history shows whether the pipeline needed approval. Once that history has been pruned, the decision depends on the
// current settings of the remaining steps' lanes.
func mayChange(c *call, id int64) error {
	step, err := c.r.GetJob(c.ctx(), id)
	if err != nil || step.PipelineID == id {
		return err
	}
	first, err := c.r.GetJob(c.ctx(), step.PipelineID)
	pruned := errors.Is(err, job.ErrNotFound)
	if err != nil && !pruned {
		return err
	}
	lanes, kinds := []string{step.Lane}, []string{step.Kind}
	if !pruned {
		lanes, kinds = append(lanes, first.Lane), append(kinds, first.Kind)
	}
	for _, next := range job.Following(step.Planned) {
		lanes, kinds = append(lanes, next.Lane), append(kinds, next.Kind)
	}
	asks, err := admin.AsksApproval(c.ctx(), inside.Of(c.r).Store, lanes, kinds)
	second := asks.FourEyes || c.fourEyes()
	if err != nil || c.caller.CanFor(access.JobsApprove, step.Submitter) && !second {
		return err
	}
	var history []job.Event
	if !pruned {
		if history, err = c.admin().Events(c.ctx(), first.ID, 0, 1); err != nil {
			return err
		}
	}
	if len(history) > 0 && *history[0].EventNo == 1 {
		if history[0].To != job.AwaitingApproval {
			return nil
		}
	} else if !asks.Approval {
		return nil
	}
	if second {
		return forbidden("its pipeline was approved with other arguments: submit a new job, which another person can approve")
	}
	return forbidden("its pipeline was approved with other arguments: permission %s is required to change them", access.JobsApprove)
}

// fourEyes reports whether approvals in every lane must come from someone other than the submitter.
func (s *service) fourEyes() bool { return inside.Of(s.r).Pod.Options().FourEyes }

// completion is the body of POST /jobs/:id/complete. If it contains an error, the named part of the job has failed.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part"`
	Result json.RawMessage `json:"result"`
	Error  *string         `json:"error"`
}

func completeJob(c *call, id int64) (any, error) {
	body, err := readBody[completion](c)
	if err != nil {
		return nil, err
	}
	var result any
	if body.Result != nil {
		result = body.Result
	}
	options := []runner.CompleteOption{runner.Part(body.Part), runner.CompletedBy(c.caller.Name)}
	if body.Error != nil {
		options = append(options, runner.PartFailed(errors.New(*body.Error)))
	}
	if err := c.r.Complete(c.ctx(), id, body.Token, result, options...); err != nil {
		return nil, err
	}
	j, err := c.r.GetJob(c.ctx(), id)
	return map[string]any{"id": idText(id), "state": j.State, "progress": j.Progress}, err
}

// newPriority is the body of PATCH /admin/workers/jobs/:id/priority.
type newPriority struct {
	Priority *int `json:"priority"`
	Chain    bool `json:"chain"` // also change the priority of the steps planned after the job
}

func setPriority(c *call, id int64) (any, error) {
	body, err := readBody[newPriority](c)
	if err != nil {
		return nil, err
	}
	if body.Priority == nil {
		return nil, invalid("priority is missing")
	}
	if *body.Priority < job.MinPriority || *body.Priority > job.MaxPriority {
		return nil, &problem{Status: http.StatusUnprocessableEntity, Code: "invalid_request",
			Message: fmt.Sprintf("priority %d: want %d to %d", *body.Priority, job.MinPriority, job.MaxPriority)}
	}
	err = c.admin().SetPriority(c.ctx(), id, *body.Priority, body.Chain)
	return map[string]any{"id": idText(id), "priority": *body.Priority}, err
}

var manyRoutes = []Route{
	{Method: http.MethodPost, Path: "/admin/workers/jobs/cancel", Needs: access.WorkersManage, right: access.JobsCancel, Summary: "Cancel all jobs that match a filter",
		in: BulkRequest{}, out: of[Many](), do: func(c *call) (any, error) { return forMany(c, c.admin().CancelMany) }},
	{Method: http.MethodPost, Path: "/admin/workers/jobs/retry", Needs: access.WorkersManage, right: access.JobsRetry, Summary: "Retry all failed jobs that match a filter",
		in: BulkRequest{}, out: of[Many](), do: func(c *call) (any, error) { return forMany(c, c.admin().RetryMany) }},
	{Method: http.MethodPost, Path: "/failures/retry", Needs: access.JobsRetry, scope: ownJobs, Summary: "Retry exactly the jobs of a group of failures",
		in: BulkRequest{}, out: of[Many](), do: retryFailures},
}

// BulkRequest is the body of a bulk command. Its filter must not be empty.
type BulkRequest struct {
	Filter struct {
		State      []string `json:"state,omitempty"`
		Kind       string   `json:"kind,omitempty"`
		Lane       string   `json:"lane,omitempty"`
		Subject    string   `json:"subject,omitempty"`
		Key        string   `json:"key,omitempty"`
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
func (s BulkRequest) Jobs(now time.Time) (f job.Filter, err error) {
	f.Kind, f.Lane, f.Subject, f.Key, f.Children = s.Filter.Kind, s.Filter.Lane, s.Filter.Subject, s.Filter.Key, s.Filter.Children
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
	return forMany(c, func(ctx context.Context, f runner.Filter, dryRun bool) (operators.BulkResult, error) {
		if f.Failures == "" {
			return operators.BulkResult{}, invalid("filter: failures is missing: want the set value of a failure group from GET /failures")
		}
		f.Owner = c.caller.Owner(access.JobsRetry)
		return c.admin().RetryMany(ctx, f, dryRun)
	})
}

func forMany(c *call, do func(context.Context, runner.Filter, bool) (operators.BulkResult, error)) (any, error) {
	body, err := readBody[BulkRequest](c)
	if err != nil {
		return nil, err
	}
	now, err := c.now(body.Filter.Since)
	if err != nil {
		return nil, err
	}
	filter, err := body.Jobs(now)
	if err != nil {
		return nil, invalid("filter: %s", err)
	}
	m, err := do(c.ctx(), filter, body.DryRun)
	return Many{Matched: m.Matched, Sample: idTexts(m.Sample), More: m.More, DryRun: m.DryRun, Done: m.Done, Skipped: m.Skipped}, err
}
