package api

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// scheduleRoutes are the calendar, as operators see and set it.
var scheduleRoutes = []Route{
	{http.MethodGet, "/admin/workers/schedules", access.WorkersView, "List schedules: when they fire, and what came of it", (*server).schedules},
	{http.MethodGet, "/admin/workers/schedules/preview", access.WorkersView, "Say in words what an expression means, and when it would fire", (*server).previewSchedule},
	{http.MethodGet, "/admin/workers/schedules/:name", access.WorkersView, "Show a schedule with its next and last fires", (*server).schedule},
	{http.MethodGet, "/admin/workers/schedules/:name/fires", access.WorkersView, "List the fires of a schedule, newest first", (*server).fires},
	{http.MethodPut, "/admin/workers/schedules/:name", access.SchedulesManage, "Create a schedule, or set all of it", (*server).putSchedule},
	{http.MethodPatch, "/admin/workers/schedules/:name", access.SchedulesManage, "Change some settings of a schedule", (*server).patchSchedule},
	{http.MethodDelete, "/admin/workers/schedules/:name", access.SchedulesManage, "Delete a schedule; the jobs that it made go on", (*server).deleteSchedule},
	{http.MethodPost, "/admin/workers/schedules/:name/pause", access.SchedulesManage, "Let a schedule not fire until it is resumed", (*server).pauseSchedule},
	{http.MethodPost, "/admin/workers/schedules/:name/resume", access.SchedulesManage, "Let a schedule fire again, from now on", (*server).resumeSchedule},
	{http.MethodPost, "/admin/workers/schedules/:name/trigger", access.SchedulesManage, "Submit the job of a schedule now, beside its fires", (*server).triggerSchedule},
}

func (s *server) schedules(c echo.Context) error {
	list, err := s.r.Schedules(c.Request().Context())
	if err != nil {
		return err
	}
	if list == nil {
		list = []job.ScheduleUse{}
	}
	shown, err := s.present(c, list)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"schedules": shown})
}

// previewFires is how many fires a preview has.
const previewFires = 5

func (s *server) previewSchedule(c echo.Context) error {
	shown, err := s.r.PreviewSchedule(c.QueryParam("expression"), c.QueryParam("zone"), time.Now(), previewFires)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, shown)
}

func (s *server) schedule(c echo.Context) error {
	one, err := s.r.ScheduleNamed(c.Request().Context(), c.Param("name"))
	if err != nil {
		return err
	}
	return s.answerShown(c, one)
}

// answerShown answers with what holds a schedule, as the sender may see it.
func (s *server) answerShown(c echo.Context, what any) error {
	shown, err := s.present(c, what)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, shown)
}

// scheduleBody is the body of PUT and PATCH.
type scheduleBody struct {
	job.ScheduleChange
	Foreign bool `json:"foreign,omitempty"` // another program has the handler: this pod need not know the kind
}

func (s *server) putSchedule(c echo.Context) error {
	return s.setSchedule(c, job.ScheduleChange.Whole)
}

func (s *server) patchSchedule(c echo.Context) error {
	return s.setSchedule(c, func(change job.ScheduleChange) job.ScheduleChange { change.Existing = true; return change })
}

func (s *server) setSchedule(c echo.Context, as func(job.ScheduleChange) job.ScheduleChange) error {
	var body scheduleBody
	dry, err := dryRun(c)
	if err == nil {
		err = readBody(c, &body, true)
	}
	if err != nil {
		return err
	}
	change := as(body.ScheduleChange)
	change.DryRun = dry
	if change.Kind != nil && *change.Kind != "" && !body.Foreign && !s.r.Handles(*change.Kind) {
		return unknownKind(*change.Kind)
	}
	var done job.ScheduleChanged
	err = unmoved(func() error {
		if change.From, err = s.maySchedule(c, c.Param("name"), change); err != nil {
			return err
		}
		done, err = s.r.SetSchedule(c.Request().Context(), c.Param("name"), change, caller(c).Name)
		return err
	})
	if err != nil {
		return err
	}
	return s.answerShown(c, done)
}

func (s *server) deleteSchedule(c echo.Context) error {
	if err := nothingAsked(c); err != nil {
		return err
	}
	if err := s.r.DeleteSchedule(c.Request().Context(), c.Param("name"), caller(c).Name); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *server) pauseSchedule(c echo.Context) error {
	return s.open(c, func(ctx context.Context, actor string) (bool, error) {
		return s.r.PauseSchedule(ctx, c.Param("name"), actor)
	})
}

func (s *server) resumeSchedule(c echo.Context) error {
	if _, err := s.mayTrigger(c, c.Param("name")); err != nil {
		return err
	}
	return s.open(c, func(ctx context.Context, actor string) (bool, error) {
		return s.r.ResumeSchedule(ctx, c.Param("name"), actor)
	})
}

func (s *server) triggerSchedule(c echo.Context) error {
	if err := nothingAsked(c); err != nil {
		return err
	}
	var fire job.Fire
	err := unmoved(func() error {
		as, err := s.mayTrigger(c, c.Param("name"))
		if err != nil {
			return err
		}
		fire, err = s.r.TriggerScheduleAs(c.Request().Context(), c.Param("name"), as, caller(c).Name)
		return err
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, fire)
}
