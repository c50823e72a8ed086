package ui

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Options configures [New].
type Options struct {
	// Store is the store that the pages read. Required.
	Store *store.Store
	// Calendar reads the schedules. Required.
	Calendar Calendar
	// Visitor authenticates a request and returns its sender with permissions. If the error wraps [access.ErrUnauthenticated], the response
	// is a 401 with the login form if Sessions is set, or with an error page if not. Required.
	Visitor func(*http.Request) (access.Principal, error)
	// Shown removes secrets that a visitor may not see from a job's arguments, result and planned steps. If the visitor may see other
	// principals' secrets, Shown writes an audit entry and returns an error if that fails. By default nothing is hidden.
	Shown func(*http.Request, access.Principal, job.Job) (job.Job, error)
	// ShownSchedule is like Shown, but for the arguments of a named schedule. By default nothing is hidden.
	ShownSchedule func(request *http.Request, reader access.Principal, name string, s job.ScheduleSetting) (job.ScheduleSetting, error)
	// Searched writes an audit entry before a visitor searches other principals' args or errors, and returns an error if that fails. By
	// default, searches are not audited.
	Searched func(*http.Request, access.Principal, storeview.Search) error
	// Sessions enables the login form. POST login must start a session, and POST logout must end it.
	Sessions bool
	// Challenge is the WWW-Authenticate header of a 401. Required.
	Challenge string
	// FourEyes forbids visitors to approve jobs that they submitted.
	FourEyes bool
	// Examine runs doctor's checks. Required.
	Examine func(context.Context) ([]Finding, error)
	// Locks returns doctor's findings on sessions that block Trapeze's sessions. Default: none.
	Locks func(context.Context) ([]Finding, error)
	// EngineUse adds information reported by the lanes' engines. By default, the pages show only data from PostgreSQL.
	EngineUse func(context.Context, []job.LaneUse)
	// Retention and Limits list this pod's settings.
	Retention, Limits []Setting
	// Logger receives unexpected errors. Default [slog.Default].
	Logger *slog.Logger
}

// Calendar reads schedules. A runner implements it.
type Calendar interface {
	// Schedules returns all schedules, sorted by name.
	Schedules(ctx context.Context) ([]job.ScheduleUse, error)
	// ScheduleByName returns one schedule, or [job.ErrUnknownSchedule].
	ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error)
	// ScheduleFires returns a schedule's occurrences before a time, newest first. The zero time returns the latest.
	ScheduleFires(ctx context.Context, name string, before time.Time, limit int) ([]job.Fire, error)
}

// Setting is one of this pod's settings. The page shows it but cannot change it.
type Setting struct {
	Name     string
	Value    string
	Variable string // the environment variable that sets it; empty if there is none
}

// Finding is one result of doctor's checks.
type Finding struct {
	Check, Status, Says, Do string
}

// Shape returns the job state whose symbol represents a finding's status.
func (f Finding) Shape() string {
	switch f.Status {
	case "ok":
		return "succeeded"
	case "warn":
		return "warning"
	}
	return "failed"
}
