// Package admin provides the commands of operators to Go programs: they list, cancel, retry and approve jobs, pause the queue, and change
// lanes, pods, schedules, limits and retention. Runner.Admin in package runner returns an [Admin].
package admin

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pod"
	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Admin reads and changes everything that operators manage: jobs, pipelines, lanes, pods, the queue state, schedules and retention. The
// CLI, the API and a host's own tools use it. Every change is recorded in the audit log under its actor's name. Its methods are safe for
// concurrent use and do not require a running pod.
//
// Each change is committed in one transaction together with its audit entry and its event. The method then notifies the pods, so the change
// takes effect immediately, or at the next heartbeat if the notification is lost. Changes to lanes, pods, schedules and the queue state
// never affect running jobs. [job.ErrOutcomeUnknown] means that the connection was lost before the reply arrived. Repeating the call is
// safe and returns the outcome.
type Admin struct {
	pod   *pod.Pod
	actor string // in the form stored in the audit log
}

// Of returns the commands of an operator, whose name the audit log records. An empty name is recorded as operator. r is a *runner.Runner;
// its method Admin does the same.
func Of(r interface {
	PodID() string
	PodName() string
}, actor string) Admin {
	return Admin{inside.Of(r).Pod, statements.Actor(actor)}
}

// finishCommand returns a command's error. If the command succeeded, finishCommand first applies it on this pod without waiting for a
// notification, so that it affects every job submitted here afterwards.
func (a Admin) finishCommand(ctx context.Context, err error) error {
	if err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Follow(ctx)
	return nil
}

// finishDrain is like finishCommand, but for a command that keeps jobs in a scope from starting. It waits up to atMost for the jobs running
// there to end.
func (a Admin) finishDrain(ctx context.Context, changed bool, atMost time.Duration, of statements.Scope, err error) (job.DrainResult, error) {
	if err := a.finishCommand(ctx, err); err != nil {
		return job.DrainResult{}, err
	}
	q, err := a.pod.AwaitQuiet(ctx, atMost, of)
	q.Changed = changed
	return q, err
}

// Retentions returns each kind's retention overrides. For all other kinds, the pods' runner.Options apply.
func (a Admin) Retentions(ctx context.Context) ([]job.Retention, error) {
	list, err := statements.Retentions(ctx, a.pod.Commands)
	return list, a.pod.DBError(err)
}

// SetRetention sets how long a kind's jobs are kept after ending in a given state, in whole seconds; 0 keeps them forever, and nil removes
// the override. It takes effect at the next maintenance run, which permanently deletes older jobs. The kind need not be registered here.
// SetRetention returns [job.ErrInvalidSetting] if a value is invalid.
func (a Admin) SetRetention(ctx context.Context, kind string, state job.State, keep *time.Duration) (job.RetentionChanged, error) {
	done, err := statements.SetRetention(ctx, a.pod.Commands, kind, state, (*job.Seconds)(keep), a.actor)
	return done, a.finishCommand(ctx, err)
}
