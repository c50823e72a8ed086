package api_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

// This test does not run in parallel, because it replaces the default logger.
func TestLogLevelOfRequestErrors(t *testing.T) {
	is := is.New(t)
	before := slog.Default()
	defer slog.SetDefault(before)
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{job.ErrOutcomeUnknown, 503, "level=WARN"}, // clients are expected to retry
		{errors.New("no such column"), 500, "level=ERROR"},
		{job.ErrNotFound, 404, ""},
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		answer := httptest.NewRecorder()
		api.HandleError(c.err, echo.New().NewContext(httptest.NewRequest("GET", "/jobs", nil), answer))
		is.Equal(answer.Code, c.status)
		is.Equal(log.Len() == 0, c.says == "")
		is.True(strings.Contains(log.String(), c.says))
	}
}

func TestDatabaseAddressInErrorResponses(t *testing.T) {
	is := is.New(t)
	driver := errors.New("failed to connect to `user=app database=prod`: write tcp 10.9.8.7:5432: broken pipe")
	for _, format := range []string{"%w (submit echo as job 5): %w", "cancel echo as job 5: %w: %w"} {
		w := httptest.NewRecorder()
		api.HandleError(fmt.Errorf(format, job.ErrOutcomeUnknown, driver), echo.New().NewContext(httptest.NewRequest("POST", "/jobs", nil), w))
		is.True(!strings.Contains(w.Body.String(), "10.9.8.7") && !strings.Contains(w.Body.String(), "prod"))
		is.True(strings.Contains(w.Body.String(), "outcome_unknown"))
		is.True(strings.Contains(w.Body.String(), "as job 5")) // the ID lets the client look up the outcome
	}
}
