package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// A schedule has handlers run: whoever sets one says which, and with what. So the right to manage schedules is that to submit for everybody,
// and SECURITY.md says so. It includes neither the right to approve nor the right to see secrets:
// jobs of schedules run without approval in every lane, so a change, a trigger or a resumption needs that right here. The test is
// TestNoScheduleLeadsAroundAnApprovalOrAMask.

// maySchedule refuses a change that would have run what a person is to approve, unless the caller may approve it himself; and one that would
// carry arguments over to another kind, whose secrets are others, unless he may see them. It returns the setting that it has looked at, of
// which alone it holds; nil: there is none.
func (s *server) maySchedule(c echo.Context, name string, change job.ScheduleChange) (looked *job.ScheduleSetting, err error) {
	ctx := c.Request().Context()
	setting := job.DefaultSchedule()
	before, err := s.r.ScheduleNamed(ctx, name)
	switch {
	case err == nil:
		setting, looked = before.ScheduleSetting, &before.ScheduleSetting
	case !errors.Is(err, job.ErrUnknownSchedule):
		return nil, err
	}
	after := change.Apply(setting)
	if looked != nil && after.Kind != setting.Kind && change.Args == nil && !caller(c).Sees(access.JobsArgs, "") {
		return nil, mayNot("args of the kind %q would be those of %q: give args as well; to take them along needs the permission %s", setting.Kind, after.Kind, access.JobsArgs)
	}
	return looked, s.mayRun(ctx, caller(c), after)
}

// mayTrigger refuses to trigger or resume a schedule whose jobs a person is to approve, unless the caller may approve them. It returns
// the setting that it has looked at.
func (s *server) mayTrigger(c echo.Context, name string) (*job.ScheduleSetting, error) {
	one, err := s.r.ScheduleNamed(c.Request().Context(), name)
	if err != nil {
		return nil, err
	}
	return &one.ScheduleSetting, s.mayRun(c.Request().Context(), caller(c), one.ScheduleSetting)
}

// unmoved does what was decided upon a setting of a schedule, and decides anew when that was changed in between, a few times.
func unmoved(do func() error) (err error) {
	for range 4 {
		if err = do(); !errors.Is(err, job.ErrScheduleMoved) {
			return err
		}
	}
	return err
}

func (s *server) mayRun(ctx context.Context, who access.Principal, setting job.ScheduleSetting) error {
	if who.Sees(access.JobsApprove, "") {
		return nil
	}
	lanes := []string{}
	if setting.Lane != "" {
		lanes = append(lanes, setting.Lane)
	}
	asks, err := s.r.Store().AsksApproval(ctx, lanes, []string{setting.Kind})
	if err == nil && asks {
		err = mayNot("its lane, or that of its kind, asks for approval: to schedule there needs the permission %s", access.JobsApprove)
	}
	return err
}

func mayNot(format string, args ...any) error {
	return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", detail: fmt.Sprintf(format, args...), refused: true}
}

// unknownKind answers as a submission of such a kind is answered.
func unknownKind(kind string) error {
	return fmt.Errorf(`schedule %q: %w: register its handler, or say "foreign": true when another program has it`, kind, job.ErrUnknownKind)
}
