package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// backend is what the operator commands act on: the database itself, or a server that has it. The same command has the same result
// on both; the errors are those of packages runner and job.
type backend interface {
	Submit(ctx context.Context, s api.Submission, idempotencyKey string) (runner.Submitted, error)
	Job(ctx context.Context, id int64) (job.Job, error)
	// Obstacles says why a job does not run.
	Obstacles(ctx context.Context, id int64) ([]job.Obstacle, error)
	Jobs(ctx context.Context, f store.Filter) (store.Page, error)
	// Events reads the history of a job, of a pipeline, or with neither of everything, after a cursor.
	Events(ctx context.Context, of history, after string, limit int) ([]job.Event, error)

	// Cancel tells a running job's handler; Stop does not wait for it. Both return the state in which the job is then.
	Cancel(ctx context.Context, id int64) (job.State, error)
	Stop(ctx context.Context, id int64) (job.State, error)
	Approve(ctx context.Context, id int64) error
	Complete(ctx context.Context, id int64, p completion) error
	// Retry returns the ids of the jobs that are pending again.
	Retry(ctx context.Context, id int64, args any) ([]int64, error)
	Nice(ctx context.Context, id int64, priority int, chain bool) error
	CancelMany(ctx context.Context, of api.Selection) (api.Many, error)
	RetryMany(ctx context.Context, of api.Selection) (api.Many, error)

	Pipelines(ctx context.Context, f store.PipelineFilter) (store.PipelinePage, error)
	Tree(ctx context.Context, id int64, branches int) (tree, error)
	// Abort and RetryPipeline return the ids of the jobs that they changed.
	Abort(ctx context.Context, id int64) ([]int64, error)
	RetryPipeline(ctx context.Context, id int64, args any) ([]int64, error)

	Pods(ctx context.Context, closed bool) ([]job.Pod, error)
	Lanes(ctx context.Context) ([]store.LaneUse, error)
	// Status is all of the gate, the lanes, the pods and what is in their slots, at one moment.
	Status(ctx context.Context) (store.Status, error)
	SetLane(ctx context.Context, name string, change job.LaneChange) (job.LaneChanged, error)
	DeleteLane(ctx context.Context, name, moveTo string, dryRun bool) (job.LaneChanged, error)

	// Schedules are listed by name.
	Schedules(ctx context.Context) ([]job.ScheduleUse, error)
	Schedule(ctx context.Context, name string) (job.ScheduleUse, error)
	// ScheduleFires lists at most limit fires, newest first.
	ScheduleFires(ctx context.Context, name string, limit int) ([]job.Fire, error)
	SetSchedule(ctx context.Context, name string, change job.ScheduleChange) (job.ScheduleChanged, error)
	DeleteSchedule(ctx context.Context, name string) error
	// PauseSchedule and ResumeSchedule report whether they changed anything.
	PauseSchedule(ctx context.Context, name string) (bool, error)
	ResumeSchedule(ctx context.Context, name string) (bool, error)
	// TriggerSchedule submits the job of a schedule now.
	TriggerSchedule(ctx context.Context, name string) (job.Fire, error)

	// Retentions are listed by kind and state.
	Retentions(ctx context.Context) ([]job.Retention, error)
	SetRetention(ctx context.Context, kind string, state job.State, keepS int64) (job.RetentionChanged, error)
	UnsetRetention(ctx context.Context, kind string, state job.State) (job.RetentionChanged, error)

	// What closes something waits so long until nothing runs there; what opens it reports whether it was closed.
	DrainLane(ctx context.Context, name string, wait time.Duration) (job.Quiet, error)
	DrainPod(ctx context.Context, pod string, wait time.Duration) (job.Quiet, error)
	Freeze(ctx context.Context, wait time.Duration) (job.Quiet, error)
	ResumeLane(ctx context.Context, name string) (bool, error)
	ResumePod(ctx context.Context, pod string) (bool, error)
	Thaw(ctx context.Context) (bool, error)
	Pause(ctx context.Context) (bool, error)
	Unpause(ctx context.Context) (bool, error)

	Audit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error)

	// Export writes every job, or every event, as JSON lines from one snapshot.
	Export(ctx context.Context, what string, to io.Writer) error
	Close()
}

// history says whose events are meant; at most one of its fields is set.
type history struct{ job, pipeline int64 }

// completion is one part of a deferred job that is completed.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"` // empty: it did not fail
}

// reach returns what a command acts on: the server of --server or TRAPEZE_SERVER, else the database.
func reach(c *cobra.Command) (backend, error) {
	config, err := loadConfig()
	if err != nil {
		return nil, err
	}
	if to, ok := serverOf(c, config); ok {
		return newServer(to)
	}
	db, err := open(c.Context())
	if err != nil {
		return nil, err
	}
	return &databaseBackend{db}, nil
}

// passing reports whether err is of something that does not answer for now.
func passing(err error) bool {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.passing()
	}
	return store.Transient(err)
}
