package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// idOf reads the job's id in the path; what is no id is no job.
func idOf(c echo.Context) (int64, error) {
	id, err := ParseID(c.Param("id"))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", job.ErrNotFound, err)
	}
	return id, nil
}

func (s *server) job(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	found, err := s.r.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	shown, err := s.present(c, found)
	return answer(c, shown, err)
}

// events answers with the history of a job after a cursor, oldest first.
func (s *server) events(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	limit, after := 1000, 0
	if text := c.QueryParam("limit"); text != "" {
		if limit, err = parseLimit(text); err != nil {
			return invalid("limit: %s", err)
		}
	}
	if text := c.QueryParam("after"); text != "" {
		if after, err = store.EventNo(text); err != nil {
			return err
		}
	}
	if _, err := s.r.Get(c.Request().Context(), id); err != nil {
		return err
	}
	list, err := s.lists.JobEvents(c.Request().Context(), id, after, limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, eventsPage(list, limit))
}

// ended answers a command that ends a job.
type ended struct {
	ID    int64     `json:"id,string"`
	State job.State `json:"state"` // running while its handler is being told
}

// cancel is the user's: asking for an end that has come already is no mistake.
func (s *server) cancel(c echo.Context) error { return s.end(c, false, true) }

func (s *server) adminCancel(c echo.Context) error { return s.end(c, false, false) }
func (s *server) adminStop(c echo.Context) error   { return s.end(c, true, false) }

func (s *server) end(c echo.Context, stop, again bool) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	end := s.r.Cancel
	if stop {
		end = s.r.Stop
	}
	did, err := end(c.Request().Context(), id, caller(c).Name)
	if errors.Is(err, job.ErrAlreadyTerminal) && again {
		err = nil
	}
	if err != nil {
		return err
	}
	status := http.StatusOK
	if did.State == job.Running {
		status = http.StatusAccepted
	}
	return c.JSON(status, ended{ID: id, State: did.State})
}
