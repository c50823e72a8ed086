package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// submitted answers POST /jobs.
type submitted struct {
	ID         int64     `json:"id,string"`
	PipelineID int64     `json:"pipeline_id,string"`
	State      job.State `json:"state"`
	Duplicate  bool      `json:"duplicate"`
}

func (s *server) submit(c echo.Context) error {
	request := c.Request()
	var body Submission
	if err := readJSON(c, &body); err != nil {
		return err
	}
	if body.Kind == "" {
		return invalid("kind is missing")
	}
	options := []runner.EnqueueOption{runner.Submitter(caller(c).Name)}
	if key := request.Header.Get("Idempotency-Key"); key != "" {
		options = append(options, runner.IdempotencyKey(key))
	}
	asks, err := s.asksApproval(request.Context(), body)
	if err != nil {
		return err
	}
	if asks {
		options = append(options, runner.NeedsApproval())
	}
	made, err := body.Submit(request.Context(), s.r, options...)
	if err != nil {
		return err
	}
	if err := s.mayBeTold(c, made); err != nil {
		return err
	}
	c.Response().Header().Set("Location", strings.TrimSuffix(asked(request), "/")+"/"+strconv.FormatInt(made.ID, 10))
	return c.JSON(http.StatusAccepted, submitted(made))
}

// mayBeTold refuses to tell of a job that held the unique key of a submission, when it is somebody else's and the caller may not read it.
func (s *server) mayBeTold(c echo.Context, made runner.Submitted) error {
	if !made.Duplicate {
		return nil
	}
	owner, err := s.r.Store().Owner(c.Request().Context(), made.ID)
	if errors.Is(err, job.ErrNotFound) { // its retention is over
		return nil
	}
	if to := caller(c); err != nil || owner == to.Name || to.Sees(access.JobsRead, owner) {
		return err
	}
	return &problem{status: http.StatusConflict, code: "unique_key_held", message: job.ErrKeyHeld.Error(), detail: "the job of somebody else holds it"}
}

func (s *server) list(c echo.Context) error {
	filter, err := filterOf(c)
	if err != nil {
		return err
	}
	filter.Owner = caller(c).Owner(access.JobsRead)
	page, err := s.lists.Jobs(c.Request().Context(), filter)
	if err != nil {
		return err
	}
	shown, err := s.present(c, page.Jobs)
	body := map[string]any{"jobs": shown, "next_cursor": cursor.Sealed("jobs", page.Cursor)}
	if !page.Searched.IsZero() {
		body["searched_to"] = page.Searched
	}
	return answer(c, body, err)
}

// current shows the current run of a subject.
func (s *server) current(c echo.Context) error {
	kind, err := storable(c.QueryParam("kind"))
	if err != nil || kind == "" {
		return invalid("kind is missing, or no text")
	}
	subject, err := storable(c.QueryParam("subject"))
	if err != nil || subject == "" {
		return invalid("subject is missing, or no text")
	}
	found, err := s.lists.Current(c.Request().Context(), kind, subject, caller(c).Owner(access.JobsRead))
	if err != nil {
		return err
	}
	shown, err := s.present(c, found)
	return answer(c, shown, err)
}

// filterOf reads the filters of a list; one that is not known is an error, for it would show too much.
func filterOf(c echo.Context) (store.Filter, error) {
	var f store.Filter
	why := map[string]string{}
	err := eachFilter(c, func(name, value string, values []string) (err error) {
		switch name {
		case "state":
			f.States, err = ParseStates(values)
		case "kind":
			f.Kind, err = storable(value)
		case "lane":
			f.Lane, err = storable(value)
		case "subject":
			f.Subject, err = storable(value)
		case "pipeline":
			f.Pipeline, err = ParseID(value)
		case "parent":
			f.Parent, err = ParseID(value)
		case "current":
			f.Current, err = strconv.ParseBool(value)
		case "since":
			f.Since, err = ParseSince(value, time.Now())
		case "children":
			f.Children, err = ParseYes(value)
		case "reason", "error_class", "error_code":
			why[name] = value
			err = f.Why(why["reason"], why["error_class"], why["error_code"])
		case "limit":
			f.Limit, err = parseLimit(value)
		case "cursor":
			f.Cursor, err = cursor.Opened("jobs", value)
		default:
			err = errNoFilter
		}
		return err
	})
	return f, err
}

// ParseYes reads true or false.
func ParseYes(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("%q: want true or false", text)
	}
	return &yes, nil
}

// ParseStates reads states, each value one or several separated by commas.
func ParseStates(values []string) ([]job.State, error) {
	var states []job.State
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		state := job.State(name)
		if !state.Known() {
			return nil, fmt.Errorf("no state %q: want one of %v", name, job.States())
		}
		states = append(states, state)
	}
	return states, nil
}

// ParseID reads the id of a job or pipeline.
func ParseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, fmt.Errorf("%q is no id: want a positive whole number", text)
	}
	return id, nil
}

// ParseSince reads a moment: RFC 3339, or how long before now, such as 90m.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("%q is no moment: want RFC 3339, such as 2025-01-31T08:00:00Z, or how long ago, such as 90m", text)
}

func parseLimit(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		return 0, fmt.Errorf("%q: want 1 to 1000", text)
	}
	return n, nil
}
