package main

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func (d *databaseBackend) Status(ctx context.Context) (store.Status, error) {
	return d.Store().Status(ctx)
}

// The commands for lanes, pods and the gate wake the pods themselves.

func (d *databaseBackend) SetLane(ctx context.Context, name string, change job.LaneChange) (job.LaneChanged, error) {
	return d.Runner.SetLane(ctx, name, change, operator())
}

func (d *databaseBackend) DeleteLane(ctx context.Context, name, moveTo string, dryRun bool) (job.LaneChanged, error) {
	return d.Runner.DeleteLane(ctx, name, moveTo, operator(), dryRun)
}

func (d *databaseBackend) DrainLane(ctx context.Context, name string, wait time.Duration) (job.Quiet, error) {
	return d.Runner.DrainLane(ctx, name, wait, operator())
}

func (d *databaseBackend) DrainPod(ctx context.Context, pod string, wait time.Duration) (job.Quiet, error) {
	return d.Runner.DrainPod(ctx, pod, wait, operator())
}

func (d *databaseBackend) Freeze(ctx context.Context, wait time.Duration) (job.Quiet, error) {
	return d.Runner.Freeze(ctx, wait, operator())
}

func (d *databaseBackend) ResumeLane(ctx context.Context, name string) (bool, error) {
	return d.Runner.ResumeLane(ctx, name, operator())
}

func (d *databaseBackend) ResumePod(ctx context.Context, pod string) (bool, error) {
	return d.Runner.ResumePod(ctx, pod, operator())
}

func (d *databaseBackend) Thaw(ctx context.Context) (bool, error) {
	return d.Runner.Thaw(ctx, operator())
}
func (d *databaseBackend) Pause(ctx context.Context) (bool, error) {
	return d.Runner.Pause(ctx, operator())
}
func (d *databaseBackend) Unpause(ctx context.Context) (bool, error) {
	return d.Runner.Unpause(ctx, operator())
}
