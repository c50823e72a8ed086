package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/problem"
	"github.com/trapeze-run/trapeze/job"
)

// unescape unescapes the path parameters. The router leaves them escaped if the path contains an escaped slash.
func unescape(c echo.Context) {
	if c.Request().URL.RawPath == "" {
		return
	}
	values := c.ParamValues()
	for i, name := range c.ParamNames() {
		if meant, err := url.PathUnescape(values[i]); err == nil && name != "*" {
			values[i] = meant
		}
	}
	c.SetParamValues(values...)
}

// checkText rejects a query that cannot be parsed completely, and text in a path or query that PostgreSQL cannot store. Individual routes
// therefore do not have to check this. It must be strict because the standard library drops the parts of a query that it cannot parse:
// without the check, ?dry_run=true; would make a real change.
func checkText(c echo.Context) error {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return &problem.Problem{Status: http.StatusBadRequest, Code: "invalid_query", Message: "invalid query string",
			Detail: "separate parameters with &, and encode ; and % as %3B and %25: " + err.Error()}
	}
	texts := c.ParamValues()
	for _, values := range query {
		texts = append(texts, values...)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return &problem.Problem{Status: http.StatusBadRequest, Code: "invalid_text", Message: errText.Error(),
				Detail: "the path or the query contains invalid UTF-8 or a NUL character"}
		}
	}
	return nil
}

// eachFilter calls read for every filter in a list request. It passes the filter's last value and all its values.
func eachFilter(c echo.Context, read func(name, value string, values []string) error) error {
	for name, values := range c.QueryParams() {
		if err := read(name, values[len(values)-1], values); err != nil {
			return problem.Invalid("filter %s: %s", name, err)
		}
	}
	return nil
}

// limitOf parses the limit parameter.
func limitOf(c echo.Context, usual int) (int, error) {
	text := c.QueryParam("limit")
	if text == "" {
		return usual, nil
	}
	limit, err := parseLimit(text)
	if err != nil {
		err = problem.Invalid("limit: %s", err)
	}
	return limit, err
}

// boolParam parses a boolean query parameter.
func boolParam(c echo.Context, name string) (bool, error) {
	text := c.QueryParam(name)
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, problem.Invalid("%s %q: want true or false", name, text)
	}
	return yes, nil
}

// jobID parses a job ID in a path. Invalid text results in a 404.
func jobID(text string) (int64, error) {
	id, err := ParseID(text)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", job.ErrNotFound, err)
	}
	return id, nil
}

// ParseID parses the ID of a job or pipeline.
func ParseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, fmt.Errorf("invalid id %q: want a positive whole number", text)
	}
	return id, nil
}

// ParseYes parses true or false.
func ParseYes(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("%q: want true or false", text)
	}
	return &yes, nil
}

// ParseStates parses states. Each value is one state, or several separated by commas.
func ParseStates(values []string) ([]job.State, error) {
	var states []job.State
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		state := job.State(name)
		if !state.Known() {
			return nil, fmt.Errorf("unknown state %q: want one of %v", name, job.States())
		}
		states = append(states, state)
	}
	return states, nil
}

// ParseStatuses parses pipeline statuses. Each value is one status, or several separated by commas.
func ParseStatuses(values []string) (list []job.Status, err error) {
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		if !slices.Contains(job.Statuses(), job.Status(name)) {
			return nil, fmt.Errorf("unknown status %q: want some of %v", name, job.Statuses())
		}
		list = append(list, job.Status(name))
	}
	return list, nil
}

// ParseSince parses a time in RFC 3339 format, or a duration before now, such as 90m.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("invalid time %q: want RFC 3339, such as 2025-01-31T08:00:00Z, or an age such as 90m", text)
}

func parseLimit(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		return 0, fmt.Errorf("%q: want 1 to 1000", text)
	}
	return n, nil
}

func idText(id int64) string { return strconv.FormatInt(id, 10) }

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = idText(id)
	}
	return list
}
