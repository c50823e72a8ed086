package ui

import (
	"context"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Options configures [New]. All functions are required.
type Options struct {
	// Store is the store that the pages read.
	Store *store.Store
	// Calendar reads the schedules.
	Calendar Calendar
	// Visitor authenticates a request and returns its sender with permissions. If the error wraps [access.ErrUnauthenticated], the response
	// is a 401 with the login form if Sessions is set, or with an error page if not.
	Visitor func(*http.Request) (access.Principal, error)
	// Shown removes secrets that a visitor may not see from a job's arguments, result and planned steps. If the visitor may see other
	// principals' secrets, Shown writes an audit entry and returns an error if that fails.
	Shown func(*http.Request, access.Principal, job.JobRow) (job.JobRow, error)
	// ShownSchedule is like Shown, but for the arguments of a named schedule.
	ShownSchedule func(request *http.Request, reader access.Principal, name string, s job.ScheduleSetting) (job.ScheduleSetting, error)
	// Searched writes an audit entry before a visitor searches other principals' args or errors, and returns an error if that fails.
	Searched func(*http.Request, access.Principal, storeview.Search) error
	// Sessions enables the login form. POST login must start a session, and POST logout must end it.
	Sessions bool
	// Challenge is the WWW-Authenticate header of a 401.
	Challenge string
	// FourEyes forbids visitors to approve jobs that they submitted.
	FourEyes bool
	// Examine runs doctor's checks.
	Examine func(context.Context) ([]doctor.Finding, error)
	// Locks returns doctor's findings on sessions that block Trapeze's sessions.
	Locks func(context.Context) ([]doctor.Finding, error)
	// EngineUse adds information reported by the lanes' engines.
	EngineUse func(context.Context, []job.LaneUse)
	// Retention and Limits list this pod's settings.
	Retention, Limits []Setting
}

// Calendar reads schedules. A runner implements it.
type Calendar interface {
	// Schedules returns all schedules, sorted by name.
	Schedules(ctx context.Context) ([]job.ScheduleUse, error)
	// ScheduleByName returns one schedule, or [job.ErrUnknownSchedule].
	ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error)
	// ScheduleOccurrences returns a schedule's occurrences before a time, newest first. The zero time returns the latest.
	ScheduleOccurrences(ctx context.Context, name string, before time.Time, limit int) ([]job.Occurrence, error)
}

// Setting is one of this pod's settings. The page shows it but cannot change it.
type Setting struct {
	Name     string
	Value    string
	Variable string // the environment variable that sets it; empty if there is none
}

// shapeOfHealth returns the job state whose symbol represents the status of a finding.
func shapeOfHealth(h doctor.Health) string {
	switch h {
	case doctor.Healthy:
		return "succeeded"
	case doctor.Warning:
		return "warning"
	}
	return "failed"
}
