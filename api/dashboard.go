package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// pageRoutes returns the dashboard's routes below /ui/. The pages do their own permission checks and report errors as HTML.
func (s *service) pageRoutes() []Route {
	pages := ui.New(ui.Options{Store: s.lists, Calendar: s.r.Admin(), Visitor: s.visitor, Shown: s.jobShown, ShownSchedule: s.scheduleShown, Searched: s.secrets.Searched, Sessions: s.opts.Login != nil,
		Challenge: s.opts.Challenge, FourEyes: s.fourEyes(), Examine: s.findings, Locks: s.locks, EngineUse: inside.Of(s.r).Pod.AddEngineUse, Retention: s.retentionSettings(), Limits: s.limitSettings()})
	return []Route{
		{Method: http.MethodGet, Path: "/ui", Needs: access.Nothing, do: func(c *call) (any, error) {
			ui.Redirect(c.Response(), c.Request(), "ui/now") // not to /ui/, because the host's middleware may remove the slash
			return nil, nil
		}},
		{Method: http.MethodGet, Path: "/ui/*", Needs: access.Nothing, do: func(c *call) (any, error) {
			below := c.Request().Clone(c.ctx())
			below.URL.Path, below.URL.RawPath = "/"+c.Param("*"), ""
			pages.ServeHTTP(c.Response(), below)
			return nil, nil
		}},
	}
}

// jobShown returns a job without the secrets that the visitor may not see.
func (s *service) jobShown(request *http.Request, reader access.Principal, j job.Job) (job.Job, error) {
	v := s.secrets.View(reader)
	shown := v.HideJob(j)
	inside.Of(s.r).Pod.NameEngine(request.Context(), &shown)
	return shown, s.secrets.Note(request, v, "job "+idText(j.ID))
}

// scheduleShown returns a schedule without the secrets that the visitor may not see.
func (s *service) scheduleShown(request *http.Request, reader access.Principal, name string, setting job.ScheduleSetting) (job.ScheduleSetting, error) {
	v := s.secrets.View(reader)
	shown := v.HideSetting(name, setting)
	return shown, s.secrets.Note(request, v, "schedule "+name)
}

// visitor authenticates the sender of a page request.
func (s *service) visitor(request *http.Request) (access.Principal, error) {
	if s.cutOff() {
		return access.Principal{}, store.ErrCutOff
	}
	p, err := s.door.who(request)
	if no, ok := errors.AsType[*response.Problem](err); ok && (no.Status == http.StatusUnauthorized || no.Status == http.StatusTooManyRequests) {
		err = fmt.Errorf("%w: %w", access.ErrUnauthenticated, err)
	}
	return p, err
}

// findings runs doctor's checks for the dashboard.
func (s *service) findings(ctx context.Context) (list []ui.Finding, err error) {
	found, err := inside.Of(s.r).Pod.Examine(ctx, s.lists, doctor.Thresholds{Transaction: doctor.DefaultThreshold, Overdue: doctor.DefaultThreshold})
	return shownFindings(found), err
}

// locks runs doctor's check of locks for the dashboard. It uses the pod's own connections, because slow reads may occupy the others.
func (s *service) locks(ctx context.Context) ([]ui.Finding, error) {
	found, err := doctor.Locks(ctx, inside.Of(s.r).Store)
	return shownFindings(found), err
}

// nameLock adds the sessions that hold locks to the response to a request that waited for one, if the caller may see doctor's findings.
func (s *service) nameLock(ctx context.Context, err error) error {
	if allowed, own := access.Of(ctx).Can(access.WorkersView); !allowed || own {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	p := *response.ProblemOf(err)
	found, unread := s.locks(asking)
	for _, f := range found {
		if unread == nil && f.Status == string(doctor.Failing) {
			p.Detail += "; " + f.Says + ": " + f.Do
		}
	}
	return &p
}

func shownFindings(found []doctor.Finding) (list []ui.Finding) {
	for _, finding := range found {
		list = append(list, ui.Finding{Check: finding.Check, Status: string(finding.Status), Says: finding.Says, Do: finding.Do})
	}
	return list
}

// retentionSettings lists this pod's retention settings for finished jobs and events.
func (s *service) retentionSettings() []ui.Setting {
	o := inside.Of(s.r).Pod.Options()
	return []ui.Setting{
		{Name: "Succeeded jobs", Value: ui.Lasting(max(o.RetainSucceeded, 0), "forever"), Variable: "TRAPEZE_RETENTION_SUCCEEDED"},
		{Name: "Failed jobs", Value: ui.Lasting(max(o.RetainFailed, 0), "forever"), Variable: "TRAPEZE_RETENTION_FAILED"},
		{Name: "Cancelled jobs", Value: ui.Lasting(max(o.RetainCancelled, 0), "forever"), Variable: "TRAPEZE_RETENTION_CANCELLED"},
		{Name: "Events", Value: ui.Lasting(max(o.RetainEvents, 0), "forever"), Variable: "TRAPEZE_RETENTION_EVENTS"},
	}
}

// limitSettings lists this pod's limits on jobs and API requests.
func (s *service) limitSettings() []ui.Setting {
	o, approval, rate := inside.Of(s.r).Pod.Options(), "any approver", "no limit"
	if o.FourEyes {
		approval = "a person other than the submitter"
	}
	if s.opts.ChangesPerSecond >= 0 {
		rate = fmt.Sprintf("%g a second, %d in a burst", s.opts.ChangesPerSecond, s.opts.ChangesBurst)
	}
	return []ui.Setting{
		{Name: "Attempts of a job", Value: fmt.Sprint(o.MaxAttempts), Variable: "TRAPEZE_MAX_ATTEMPTS"},
		{Name: "Crashes of a job's pods", Value: fmt.Sprint(o.MaxCrashes), Variable: "TRAPEZE_MAX_CRASHES"},
		{Name: "Duration of a run", Value: ui.Lasting(o.Timeout, "no limit"), Variable: "TRAPEZE_TIMEOUT"},
		{Name: "Run without activity", Value: ui.Lasting(o.StaleAfter, "no limit"), Variable: "TRAPEZE_STALE_AFTER"},
		{Name: "Age of a job since it became due", Value: ui.Lasting(o.MaxAge, "no limit"), Variable: "TRAPEZE_MAX_AGE"},
		{Name: "Wait for approval", Value: ui.Lasting(o.ApprovalTTL, "no limit"), Variable: "TRAPEZE_APPROVAL_TTL"},
		{Name: "Approval by", Value: approval, Variable: "TRAPEZE_FOUR_EYES"},
		{Name: "Children of a fan-out", Value: fmt.Sprint(o.MaxFanOut)},
		{Name: "Interval of a schedule", Value: "at least " + ui.Lasting(o.MinScheduleInterval, "0s"), Variable: "TRAPEZE_MIN_SCHEDULE_INTERVAL"},
		{Name: "Slots", Value: fmt.Sprint(o.Slots), Variable: "TRAPEZE_SLOTS"},
		{Name: "Changes by a principal or from an address", Value: rate},
		{Name: "Size of a request", Value: fmt.Sprintf("%d KiB", s.opts.MaxBodyBytes>>10)},
		{Name: "Streams", Value: fmt.Sprintf("%d, %d of a principal", s.opts.Streams.Most, s.opts.Streams.MostEach)},
	}
}
