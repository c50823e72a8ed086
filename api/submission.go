package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var submissionRoutes = []Route{
	{Method: http.MethodPost, Path: "/jobs", Needs: access.JobsSubmit, scope: ownJobs, Summary: "Submit a job",
		headers: []string{"Idempotency-Key"}, in: Submission{}, out: of[submitted](), statuses: []int{http.StatusAccepted}, do: withBody(submit)},
}

// Submission is the JSON form of a new job: the body of POST /jobs and the input format of the command line. Only the kind is required.
type Submission struct {
	Kind              string          `json:"kind"`
	Args              json.RawMessage `json:"args,omitempty"`
	Subject           *string         `json:"subject,omitempty"`
	Key               *string         `json:"key,omitempty"` // whose job it is, such as a tenant: 1 to 200 bytes
	Lane              string          `json:"lane,omitempty"`
	Priority          *int            `json:"priority,omitempty"` // nil means the default; 0 means priority 0
	Delay             Delay           `json:"delay,omitempty"`
	MaxAttempts       *int            `json:"max_attempts,omitempty"`
	UniqueKey         string          `json:"unique_key,omitempty"`
	UniqueWhile       string          `json:"unique_while,omitempty"`       // pending (default) or active
	Replace           bool            `json:"replace,omitempty"`            // the job that waits with unique_key takes the args
	Debounce          *Delay          `json:"debounce,omitempty"`           // it becomes due so long after the latest submission
	DebounceMax       *Delay          `json:"debounce_max,omitempty"`       // and at the latest so long after the first one
	Throttle          *Delay          `json:"throttle,omitempty"`           // it starts no earlier than so long after the last one of unique_key
	AllowUnregistered bool            `json:"allow_unregistered,omitempty"` // another program handles the kinds, so this pod need not know them
	Approval          bool            `json:"needs_approval,omitempty"`
	StartBy           *Delay          `json:"start_by,omitempty"` // time from now within which the job must start
	Ordered           bool            `json:"ordered,omitempty"`  // while it waits for a retry, it keeps its subject
	Chain             []Step          `json:"chain,omitempty"`    // the next steps
}

// Step is a step of a chain. Missing fields are inherited from the previous step.
type Step struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args,omitempty"`
	Lane     string          `json:"lane,omitempty"`
	Subject  *string         `json:"subject,omitempty"`
	Key      *string         `json:"key,omitempty"`
	Priority *int            `json:"priority,omitempty"`
}

// Submit submits s to r, with additional options. It returns the errors of [runner.Runner.Enqueue].
func (s Submission) Submit(ctx context.Context, r *runner.Runner, more ...runner.EnqueueOption) (runner.Submitted, error) {
	options := jobOptions(s.Lane, s.Subject, s.Key, s.Priority)
	if s.Delay != 0 {
		options = append(options, runner.Delay(time.Duration(s.Delay)))
	}
	if s.MaxAttempts != nil {
		options = append(options, runner.MaxAttempts(*s.MaxAttempts))
	}
	if s.StartBy != nil {
		options = append(options, runner.StartBy(time.Duration(*s.StartBy)))
	}
	if s.Ordered {
		options = append(options, runner.Ordered())
	}
	if s.Approval {
		options = append(options, runner.NeedsApproval())
	}
	if s.UniqueKey != "" {
		options = append(options, s.unique())
	} else if s.Replace || s.Debounce != nil || s.DebounceMax != nil || s.Throttle != nil {
		return runner.Submitted{}, fmt.Errorf("%w: replace, debounce and throttle need a unique_key", job.ErrInvalid)
	}
	if s.AllowUnregistered {
		options = append(options, runner.AllowUnregistered())
	}
	var args job.Args = runner.Raw{Name: s.Kind, JSON: s.Args}
	if len(s.Chain) > 0 {
		steps := make([]job.Args, len(s.Chain))
		for i, step := range s.Chain {
			steps[i] = runner.With(runner.Raw{Name: step.Kind, JSON: step.Args}, jobOptions(step.Lane, step.Subject, step.Key, step.Priority)...)
		}
		args = runner.Chain(args, steps...)
	}
	submitted, err := r.Enqueue(ctx, args, append(options, more...)...)
	if err != nil || !submitted.Duplicate {
		return submitted, err
	}
	// The existing job's state may have changed since it was found.
	holder, err := r.GetJob(ctx, submitted.ID)
	if errors.Is(err, job.ErrNotFound) { // the job was pruned
		return submitted, nil
	}
	submitted.PipelineID, submitted.State = holder.PipelineID, holder.State
	return submitted, err
}

// unique returns the option for the unique key and for the job that waits with it.
func (s Submission) unique() runner.UniqueOption {
	while := runner.WhilePending
	if s.UniqueWhile != "" {
		while = runner.UniqueWhile(s.UniqueWhile)
	}
	o := runner.Unique(s.UniqueKey, while)
	if s.Replace {
		o = o.Replace()
	}
	if s.Debounce != nil || s.DebounceMax != nil {
		var zero Delay
		o = o.Debounce(time.Duration(*cmp.Or(s.Debounce, &zero)), time.Duration(*cmp.Or(s.DebounceMax, &zero)))
	}
	if s.Throttle != nil {
		o = o.Throttle(time.Duration(*s.Throttle))
	}
	return o
}

func jobOptions(lane string, subject, key *string, priority *int) []runner.EnqueueOption {
	var options []runner.EnqueueOption
	if lane != "" {
		options = append(options, runner.Lane(lane))
	}
	if subject != nil {
		options = append(options, runner.Subject(*subject))
	}
	if key != nil {
		options = append(options, runner.Key(*key))
	}
	if priority != nil {
		options = append(options, runner.Priority(*priority))
	}
	return options
}

// submitted is the response to POST /jobs.
type submitted struct {
	ID         int64     `json:"id,string"`
	PipelineID int64     `json:"pipeline_id,string"`
	State      job.State `json:"state"`
	Duplicate  bool      `json:"duplicate"`
	Replaced   bool      `json:"replaced"` // the job, a duplicate, waits and takes this submission's args
}

func submit(c *call, body Submission) (any, error) {
	if body.Kind == "" {
		return nil, invalid("kind is missing")
	}
	if err := body.cap(c.caller.Caps()); err != nil {
		return nil, err
	}
	options := []runner.EnqueueOption{runner.Submitter(c.caller.Name)}
	if key := c.Request().Header.Get("Idempotency-Key"); key != "" {
		options = append(options, runner.IdempotencyKey(key))
	}
	asks, err := asksApproval(c, body)
	if err != nil {
		return nil, err
	}
	if asks {
		options = append(options, runner.NeedsApproval())
	}
	limits, err := cappedAttempts(c, body)
	if err != nil {
		return nil, err
	}
	if len(limits) > 0 {
		options = append(options, runner.MaxAttemptsOf(limits))
	}
	made, err := body.Submit(c.ctx(), c.r, options...)
	if err == nil && made.Duplicate {
		err = mayLearn(c, made.ID)
	}
	if err != nil {
		return nil, err
	}
	c.Response().Header().Set("Location", strings.TrimSuffix(access.RequestURL(c.Request()).Path, "/")+"/"+idText(made.ID))
	return submitted(made), nil
}

// cappedAttempts returns an attempt limit for each kind in a submission whose limit exceeds the caller's cap. A kind that no pod handles
// gets this pod's default limit, or the cap if that is lower.
func cappedAttempts(c *call, body Submission) (map[string]int, error) {
	limit := c.caller.Caps().Attempts
	if limit == nil {
		return nil, nil
	}
	kinds := []string{body.Kind}
	for _, step := range body.Chain {
		kinds = append(kinds, step.Kind)
	}
	most, err := admin.KindAttempts(c.ctx(), inside.Of(c.r).Store, kinds)
	if err != nil {
		return nil, err
	}
	limits := map[string]int{}
	for kind, own := range most {
		switch {
		case own == nil:
			limits[kind] = min(*limit, inside.Of(c.r).Pod.Options().MaxAttempts)
		case *own > *limit:
			limits[kind] = *limit
		}
	}
	return limits, nil
}

// asksApproval reports whether a lane or kind in a submission requires approval. The store checks only the lane of the first step. This
// check prevents callers from bypassing an approval through a different lane, an earlier step or a retry.
// TestApprovalBypassByLaneChain tests it.
func asksApproval(c *call, body Submission) (bool, error) {
	if body.Lane == "" && len(body.Chain) == 0 {
		return false, nil
	}
	lanes, kinds := []string{}, []string{body.Kind}
	if body.Lane != "" {
		lanes = append(lanes, body.Lane)
	}
	for _, step := range body.Chain {
		if kinds = append(kinds, step.Kind); step.Lane != "" {
			lanes = append(lanes, step.Lane)
		}
	}
	asks, err := admin.AsksApproval(c.ctx(), inside.Of(c.r).Store, lanes, kinds)
	return asks.Approval, err
}

// mayLearn returns an error if the caller may not read the job that already holds the submission's unique key. Otherwise the response would
// reveal that job.
func mayLearn(c *call, id int64) error {
	owner, err := storeview.Owner(c.ctx(), inside.Of(c.r).Store, id)
	if errors.Is(err, job.ErrNotFound) { // the job was pruned
		return nil
	}
	if err != nil || owner == c.caller.Name || c.caller.CanFor(access.JobsRead, owner) {
		return err
	}
	return &problem{Status: http.StatusConflict, Code: "unique_key_held", Message: job.ErrKeyHeld.Error(), Detail: "another submitter's job holds it"}
}
