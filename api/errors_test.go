package api_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

// It has the log of the whole program for itself, and therefore runs alone.
func TestOnlyAnErrorThatNeedsAPersonIsLoggedAsOne(t *testing.T) {
	is := is.New(t)
	before := slog.Default()
	defer slog.SetDefault(before)
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{job.ErrOutcomeUnknown, 503, "level=WARN"}, // who asks asks again
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
