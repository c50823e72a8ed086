package api

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

var scheduleRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/schedules", Needs: access.WorkersView, Summary: "List schedules with their next and last occurrences",
		out: object("schedules", listOf(of[job.ScheduleUse]())), do: listSchedules},
	{Method: http.MethodGet, Path: "/admin/workers/schedules/preview", Needs: access.WorkersView, Summary: "Explain an expression in words, with its next occurrences",
		query: []string{"expression", "zone"}, out: of[job.SchedulePreview](), do: previewSchedule},
	{Method: http.MethodGet, Path: "/admin/workers/schedules/:name", Needs: access.WorkersView, Summary: "Show a schedule with its next and last occurrences",
		out: of[job.ScheduleUse](), do: showSchedule},
	{Method: http.MethodGet, Path: "/admin/workers/schedules/:name/occurrences", Needs: access.WorkersView, Summary: "List the occurrences of a schedule, newest first",
		query: []string{"limit", "cursor"}, out: page("occurrences", of[job.Occurrence]()), do: listOccurrences},
	{Method: http.MethodPut, Path: "/admin/workers/schedules/:name", Needs: access.SchedulesManage, Summary: "Create or replace a schedule",
		in: scheduleBody{}, query: []string{"dry_run"}, out: of[job.ScheduleChanged](), do: setSchedule(job.ScheduleChange.Whole)},
	{Method: http.MethodPatch, Path: "/admin/workers/schedules/:name", Needs: access.SchedulesManage, Summary: "Change some settings of a schedule",
		in: scheduleBody{}, query: []string{"dry_run"}, out: of[job.ScheduleChanged](),
		do: setSchedule(func(change job.ScheduleChange) job.ScheduleChange { change.Existing = true; return change })},
	{Method: http.MethodDelete, Path: "/admin/workers/schedules/:name", Needs: access.SchedulesManage, Summary: "Delete a schedule; its jobs continue",
		statuses: []int{http.StatusNoContent}, do: deleteSchedule},
	{Method: http.MethodPost, Path: "/admin/workers/schedules/:name/pause", Needs: access.SchedulesManage, Summary: "Pause a schedule until it is resumed",
		out: of[changed](), do: func(c *call) (any, error) { return toggleOne(c, c.Param("name"), c.admin().PauseSchedule) }},
	{Method: http.MethodPost, Path: "/admin/workers/schedules/:name/resume", Needs: access.SchedulesManage, Summary: "Resume a paused schedule from now on",
		out: of[changed](), do: resumeSchedule},
	{Method: http.MethodPost, Path: "/admin/workers/schedules/:name/trigger", Needs: access.SchedulesManage, Summary: "Submit the job of a schedule now, in addition to its occurrences",
		out: of[job.Occurrence](), do: triggerSchedule},
}

func listSchedules(c *call) (any, error) {
	found, err := c.admin().Schedules(c.ctx())
	if err != nil {
		return nil, err
	}
	shown, err := c.present(orEmpty(found))
	return map[string]any{"schedules": shown}, err
}

// previewOccurrences is the number of occurrences in a preview.
const previewOccurrences = 5

func previewSchedule(c *call) (any, error) {
	now, err := storeview.Now(c.ctx(), c.lists)
	if err != nil {
		return nil, err
	}
	return c.admin().PreviewSchedule(c.QueryParam("expression"), c.QueryParam("zone"), now, previewOccurrences)
}

func showSchedule(c *call) (any, error) {
	schedule, err := c.admin().ScheduleByName(c.ctx(), c.Param("name"))
	if err != nil {
		return nil, err
	}
	return c.present(schedule)
}

func listOccurrences(c *call) (any, error) {
	before, limit := time.Time{}, 50
	err := eachFilter(c, func(name, value string, _ []string) (err error) {
		switch name {
		case "limit":
			limit, err = text.ParseLimit(value)
		case "cursor":
			if value, err = text.DecodeCursor("occurrences", value); err == nil && value != "" {
				before, err = time.Parse(time.RFC3339Nano, value)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found, err := c.admin().ScheduleOccurrences(c.ctx(), c.Param("name"), before, limit)
	return pageOf("occurrences", found, limit, func(last job.Occurrence) string {
		return text.EncodeCursor("occurrences", last.FireAt.Format(time.RFC3339Nano))
	}), err
}

// scheduleBody is the body of a PUT or PATCH request.
type scheduleBody struct {
	job.ScheduleChange
	AllowUnregistered bool `json:"allow_unregistered,omitempty"` // another program handles the kind, so this pod need not know it
}

// setSchedule returns a handler that changes a schedule. The handler first applies adjust to the requested change. For a PUT
// request, adjust sets missing settings to their defaults.
func setSchedule(adjust func(job.ScheduleChange) job.ScheduleChange) handler {
	return func(c *call) (any, error) {
		dry, err := c.dryRun()
		if err != nil {
			return nil, err
		}
		body, err := readBody[scheduleBody](c)
		if err != nil {
			return nil, err
		}
		change := adjust(body.ScheduleChange)
		change.DryRun = dry
		if change.Kind != nil && *change.Kind != "" && !body.AllowUnregistered && !inside.Of(c.r).Handles(*change.Kind) {
			return nil, fmt.Errorf(`%w: schedule %q: register its handler, or set "allow_unregistered": true if another program handles it`, job.ErrUnknownKind, *change.Kind)
		}
		var done job.ScheduleChanged
		err = retryConflict(func() error {
			if change.From, err = maySchedule(c, change); err != nil {
				return err
			}
			done, err = c.admin().SetSchedule(c.ctx(), c.Param("name"), change)
			return err
		})
		if err != nil {
			return nil, err
		}
		return c.present(done)
	}
}

func deleteSchedule(c *call) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	return nil, c.admin().DeleteSchedule(c.ctx(), c.Param("name"))
}

func resumeSchedule(c *call) (any, error) {
	if _, err := mayTrigger(c); err != nil {
		return nil, err
	}
	return toggleOne(c, c.Param("name"), c.admin().ResumeSchedule)
}

func triggerSchedule(c *call) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	var fire job.Occurrence
	err := retryConflict(func() error {
		as, err := mayTrigger(c)
		if err != nil {
			return err
		}
		fire, err = c.admin().TriggerSchedule(c.ctx(), c.Param("name"), as)
		return err
	})
	return fire, err
}

// A schedule can run handlers, because its setting contains a kind and arguments. The permission to manage schedules therefore includes the
// permission to submit for every principal, as SECURITY.md states. It includes neither the permission to approve nor the permission to see
// secrets. Scheduled jobs run without approval in every lane. If a schedule's jobs would otherwise need approval, changing, triggering or
// resuming it therefore requires the permission to approve. TestScheduleApprovalAndMaskBypass checks this.

// maySchedule rejects a change whose jobs would need approval, unless the caller may approve them. It also rejects a change that would pass
// existing arguments to another kind, whose secrets differ, unless the caller may see secrets. It returns the setting on which it based the
// decision, or nil if the schedule does not exist.
func maySchedule(c *call, change job.ScheduleChange) (current *job.ScheduleSetting, err error) {
	setting := job.DefaultSchedule()
	before, err := c.admin().ScheduleByName(c.ctx(), c.Param("name"))
	switch {
	case err == nil:
		setting, current = before.ScheduleSetting, &before.ScheduleSetting
	case !errors.Is(err, job.ErrUnknownSchedule):
		return nil, err
	}
	after := change.Apply(setting)
	if current != nil && after.Kind != setting.Kind && change.Args == nil && !c.caller.CanFor(access.JobsArgs, "") {
		return nil, forbidden("the new kind %q would get the args of %q: send args too, or get permission %s to keep them", after.Kind, setting.Kind, access.JobsArgs)
	}
	return current, mayRun(c, after)
}

// mayTrigger rejects triggering or resuming a schedule whose jobs would need approval, unless the caller may approve them. It returns the
// setting on which it based the decision.
func mayTrigger(c *call) (*job.ScheduleSetting, error) {
	schedule, err := c.admin().ScheduleByName(c.ctx(), c.Param("name"))
	if err != nil {
		return nil, err
	}
	return &schedule.ScheduleSetting, mayRun(c, schedule.ScheduleSetting)
}

// retryConflict calls change up to four times, until the schedule no longer changes between the decision and the write.
func retryConflict(change func() error) (err error) {
	for range 4 {
		if err = change(); !errors.Is(err, job.ErrConflict) {
			return err
		}
	}
	return err
}

func mayRun(c *call, setting job.ScheduleSetting) error {
	lanes := []string{}
	if setting.Lane != "" {
		lanes = append(lanes, setting.Lane)
	}
	asks, err := admin.AsksApproval(c.ctx(), inside.Of(c.r).Store, lanes, []string{setting.Kind})
	switch {
	case err != nil || !asks.Approval:
		return err
	case asks.FourEyes || c.fourEyes():
		return forbidden("its lane, or the lane of its kind, requires approval by another person, and jobs of a schedule run without approval")
	case c.caller.CanFor(access.JobsApprove, ""):
		return nil
	}
	return forbidden("its lane, or the lane of its kind, requires approval: permission %s is required to schedule there", access.JobsApprove)
}
