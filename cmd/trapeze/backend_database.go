package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// databaseBackend acts on the database, and wakes the pods when there is something to do for them.
type databaseBackend struct{ *client }

func (d *databaseBackend) Submit(ctx context.Context, s api.Submission, idempotencyKey string) (runner.Submitted, error) {
	options := []runner.EnqueueOption{runner.Submitter(operator())}
	if idempotencyKey != "" {
		options = append(options, runner.IdempotencyKey(idempotencyKey))
	}
	made, err := s.Submit(ctx, d.Runner, options...)
	if err == nil && !made.Duplicate {
		d.wake(ctx)
	}
	return made, err
}

func (d *databaseBackend) Job(ctx context.Context, id int64) (job.Job, error) { return d.Get(ctx, id) }

func (d *databaseBackend) Jobs(ctx context.Context, f store.Filter) (store.Page, error) {
	return d.Store().Jobs(ctx, f)
}

func (d *databaseBackend) Events(ctx context.Context, of history, after string, limit int) ([]job.Event, error) {
	if of.job == 0 {
		return d.Store().Events(ctx, of.pipeline, after, limit)
	}
	no, err := store.EventNo(after)
	if err != nil {
		return nil, err
	}
	return d.Store().JobEvents(ctx, of.job, no, limit)
}

func (d *databaseBackend) Cancel(ctx context.Context, id int64) (job.State, error) {
	did, err := d.Runner.Cancel(ctx, id, operator())
	return did.State, d.woken(ctx, err)
}

func (d *databaseBackend) Stop(ctx context.Context, id int64) (job.State, error) {
	did, err := d.Runner.Stop(ctx, id, operator())
	return did.State, d.woken(ctx, err)
}

func (d *databaseBackend) Approve(ctx context.Context, id int64) error {
	return d.woken(ctx, d.Runner.Approve(ctx, id, operator()))
}

func (d *databaseBackend) Complete(ctx context.Context, id int64, p completion) error {
	options := []runner.CompleteOption{runner.Part(p.Part), runner.CompletedBy(operator())}
	if p.Error != "" {
		options = append(options, runner.PartFailed(errors.New(p.Error)))
	}
	var result any
	if p.Result != nil {
		result = p.Result
	}
	return d.woken(ctx, d.Runner.Complete(ctx, id, p.Token, result, options...))
}

func (d *databaseBackend) Retry(ctx context.Context, id int64, args any) ([]int64, error) {
	ids, err := d.Runner.Retry(ctx, id, operator(), args)
	return ids, d.woken(ctx, err)
}

func (d *databaseBackend) Nice(ctx context.Context, id int64, priority int, chain bool) error {
	return d.woken(ctx, d.Runner.Nice(ctx, id, priority, chain, operator()))
}

func (d *databaseBackend) CancelMany(ctx context.Context, of api.Selection) (api.Many, error) {
	return d.many(ctx, of, d.Runner.CancelMany)
}

func (d *databaseBackend) RetryMany(ctx context.Context, of api.Selection) (api.Many, error) {
	return d.many(ctx, of, d.Runner.RetryMany)
}

func (d *databaseBackend) many(ctx context.Context, of api.Selection, do func(context.Context, runner.Filter, bool, string) (runner.Many, error)) (api.Many, error) {
	filter, err := of.Jobs()
	if err != nil {
		return api.Many{}, err
	}
	did, err := do(ctx, filter, of.DryRun, operator())
	return api.ManyOf(did), d.woken(ctx, err)
}

func (d *databaseBackend) Pipelines(ctx context.Context, f store.PipelineFilter) (store.PipelinePage, error) {
	return d.Store().Pipelines(ctx, f)
}

func (d *databaseBackend) Tree(ctx context.Context, id int64, branches int) (tree, error) {
	t, err := d.Store().Tree(ctx, id, store.TreeLimits{Children: branches})
	return tree(t), err
}

func (d *databaseBackend) Abort(ctx context.Context, id int64) ([]int64, error) {
	ids, err := d.AbortPipeline(ctx, id, operator())
	return ids, d.woken(ctx, err)
}

func (d *databaseBackend) RetryPipeline(ctx context.Context, id int64, args any) ([]int64, error) {
	ids, err := d.Runner.RetryPipeline(ctx, id, operator(), args)
	return ids, d.woken(ctx, err)
}

func (d *databaseBackend) Pods(ctx context.Context, closed bool) ([]job.Pod, error) {
	return d.Store().Pods(ctx, closed)
}

func (d *databaseBackend) Lanes(ctx context.Context) ([]store.LaneUse, error) {
	return d.Store().Lanes(ctx)
}

func (d *databaseBackend) Audit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	return d.Store().AuditTrail(ctx, f)
}

func (d *databaseBackend) Export(ctx context.Context, what string, to io.Writer) error {
	return d.Store().Snapshot(ctx, func(tx pgx.Tx) error {
		return inLines(to, func(lines *json.Encoder) error {
			if what == "jobs" {
				return d.Store().ExportJobs(ctx, tx, func(j job.Job) error { return lines.Encode(j) })
			}
			return d.Store().ExportEvents(ctx, tx, func(e job.Event) error { return lines.Encode(e) })
		})
	})
}

// woken wakes the pods after a command that was done.
func (d *databaseBackend) woken(ctx context.Context, err error) error {
	if err == nil {
		d.wake(ctx)
	}
	return err
}
