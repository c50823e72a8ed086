package api_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

func TestNoAnswerSaysWhereTheDatabaseIs(t *testing.T) {
	is := is.New(t)
	driver := errors.New("failed to connect to `user=app database=prod`: write tcp 10.9.8.7:5432: broken pipe")
	w := httptest.NewRecorder()
	api.HandleError(fmt.Errorf("submit echo as job 5: %w: %w", job.ErrOutcomeUnknown, driver), echo.New().NewContext(httptest.NewRequest("POST", "/jobs", nil), w))
	is.True(!strings.Contains(w.Body.String(), "10.9.8.7") && !strings.Contains(w.Body.String(), "prod"))
	is.True(strings.Contains(w.Body.String(), "outcome_unknown"))
	is.True(strings.Contains(w.Body.String(), "as job 5")) // by which one can look
}
