package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var steeringRoutes = []Route{
	{http.MethodDelete, "/jobs/:id", access.JobsCancel, "Delete a job that has ended, or by its first job a pipeline", (*server).deleteJob},
	{http.MethodPost, "/jobs/:id/approve", access.JobsApprove, "Let a job go that awaits approval", (*server).approve},
	{http.MethodPost, "/jobs/:id/retry", access.JobsRetry, "Run a failed or cancelled job again, if need be with other args", (*server).retry},
	{http.MethodPost, "/jobs/:id/complete", access.JobsSubmit, "End a deferred job, or one part of it, with its token", (*server).complete},
	{http.MethodPatch, "/admin/workers/jobs/:id/priority", access.WorkersManage, "Give a job that waits another priority", (*server).nice},
}

func (s *server) deleteJob(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	n, err := s.r.Delete(c.Request().Context(), id, caller(c).Name)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"id": idText(id), "deleted": n})
}

func (s *server) approve(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	if err := s.r.Approve(c.Request().Context(), id, caller(c).Name); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, ended{ID: id, State: job.Pending})
}

// again is the body of a retry; without one, a job keeps its arguments.
type again struct {
	Args json.RawMessage `json:"args"`
}

// otherArgs are the arguments of a retry; nil: those that the job had.
func (a again) otherArgs() any {
	if a.Args == nil {
		return nil
	}
	return a.Args
}

// retried answers a retry.
type retried struct {
	ID      int64    `json:"id,string"`
	State   string   `json:"state"`
	Retried []string `json:"retried"` // the jobs that are pending again
}

func (s *server) retry(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	var body again
	if err := optional(c, &body); err != nil {
		return err
	}
	if body.Args != nil {
		if err := s.mayChange(c, id); err != nil {
			return err
		}
	}
	ids, err := s.r.Retry(c.Request().Context(), id, caller(c).Name, body.otherArgs())
	if err != nil {
		return err
	}
	state := job.Waiting // for the branches that go on
	if len(ids) == 1 && ids[0] == id {
		state = job.Pending
	} else if len(ids) == 0 {
		if j, err := s.r.Get(c.Request().Context(), id); err == nil && j.State == job.AwaitingApproval {
			state = j.State
		}
	}
	return c.JSON(http.StatusAccepted, retried{ID: id, State: string(state), Retried: idTexts(ids)})
}

// completion is the body of POST /jobs/:id/complete. An error says that the part has failed.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part"`
	Result json.RawMessage `json:"result"`
	Error  *string         `json:"error"`
}

func (s *server) complete(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	var body completion
	if err := readJSON(c, &body); err != nil {
		return err
	}
	var result any
	if body.Result != nil {
		result = body.Result
	}
	options := []runner.CompleteOption{runner.Part(body.Part), runner.CompletedBy(caller(c).Name)}
	if body.Error != nil {
		options = append(options, runner.PartFailed(errors.New(*body.Error)))
	}
	if err := s.r.Complete(c.Request().Context(), id, body.Token, result, options...); err != nil {
		return err
	}
	j, err := s.r.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"id": idText(id), "state": j.State, "progress": j.Progress})
}

// priority is the body of PATCH /admin/workers/jobs/:id/priority.
type priority struct {
	Priority *int `json:"priority"`
	Chain    bool `json:"chain"` // also for the steps that are planned after it
}

func (s *server) nice(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	var body priority
	if err := readJSON(c, &body); err != nil {
		return err
	}
	if body.Priority == nil {
		return invalid("priority is missing")
	}
	if *body.Priority < job.MinPriority || *body.Priority > job.MaxPriority {
		return &problem{status: http.StatusUnprocessableEntity, code: "invalid_request",
			message: fmt.Sprintf("priority %d: want %d to %d", *body.Priority, job.MinPriority, job.MaxPriority)}
	}
	if err := s.r.Nice(c.Request().Context(), id, *body.Priority, body.Chain, caller(c).Name); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"id": idText(id), "priority": *body.Priority})
}

func idText(id int64) string { return strconv.FormatInt(id, 10) }

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = idText(id)
	}
	return list
}
