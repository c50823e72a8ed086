package main

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The commands for schedules tell the pods themselves.

func (d *databaseBackend) Schedules(ctx context.Context) ([]job.ScheduleUse, error) {
	return d.Runner.Schedules(ctx)
}

func (d *databaseBackend) Schedule(ctx context.Context, name string) (job.ScheduleUse, error) {
	return d.ScheduleNamed(ctx, name)
}

func (d *databaseBackend) ScheduleFires(ctx context.Context, name string, limit int) ([]job.Fire, error) {
	return d.ScheduleFiresBefore(ctx, name, time.Time{}, limit)
}

func (d *databaseBackend) SetSchedule(ctx context.Context, name string, change job.ScheduleChange) (job.ScheduleChanged, error) {
	return d.Runner.SetSchedule(ctx, name, change, operator())
}

func (d *databaseBackend) DeleteSchedule(ctx context.Context, name string) error {
	return d.Runner.DeleteSchedule(ctx, name, operator())
}

func (d *databaseBackend) PauseSchedule(ctx context.Context, name string) (bool, error) {
	return d.Runner.PauseSchedule(ctx, name, operator())
}

func (d *databaseBackend) ResumeSchedule(ctx context.Context, name string) (bool, error) {
	return d.Runner.ResumeSchedule(ctx, name, operator())
}

func (d *databaseBackend) TriggerSchedule(ctx context.Context, name string) (job.Fire, error) {
	return d.Runner.TriggerSchedule(ctx, name, operator())
}
