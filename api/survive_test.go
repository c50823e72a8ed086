package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestPanickingRoute(t *testing.T) { // not parallel, because it reads the default log
	is := is.New(t)
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	defer slog.SetDefault(before)
	r, err := runner.New(pgtest.Unconnected(t), runner.Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	door := func(path string, do handler) Route {
		return Route{Method: http.MethodGet, Path: path, Needs: access.Nothing, do: do}
	}
	e := echo.New()
	mount(e.Group(""), r, Options{InsecureAllowAll: true}, []Route{
		door("/breaks", func(*call) (any, error) { panic("secret of the program") }),
		door("/breaks/off", func(c *call) (any, error) {
			_ = c.String(http.StatusOK, "half of")
			panic("later")
		}),
	})
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/breaks", nil))
	is.Equal(w.Code, http.StatusInternalServerError)
	var said struct {
		Code      string
		RequestID string `json:"request_id"`
	}
	is.NoErr(json.Unmarshal(w.Body.Bytes(), &said)) // the response has the usual error format
	is.Equal(said.Code, "internal")
	is.True(!strings.Contains(w.Body.String(), "secret"))
	is.True(strings.Contains(log.String(), "secret of the program") && strings.Contains(log.String(), "survive_test.go")) // the log includes the stack
	is.True(strings.Contains(log.String(), said.RequestID))
	is.Equal(strings.Count(log.String(), "\n"), 1)

	log.Reset()
	var thrown any
	func() {
		defer func() { thrown = recover() }()
		e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/breaks/off", nil))
	}()
	is.Equal(thrown, http.ErrAbortHandler) // makes net/http abort the partial response
	is.True(strings.Contains(log.String(), "later"))
}

func TestHiddenErrorToHost(t *testing.T) {
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	var failed []error
	hidden, who := errors.New("the host of the database"), ""
	e := echo.New()
	mount(e.Group(""), r, Options{InsecureAllowAll: true, Operator: "cli:ana", OnFailure: func(_ *http.Request, err error) { failed = append(failed, err) }}, []Route{
		{Method: http.MethodGet, Path: "/fails", Needs: access.JobsRead, do: func(c *call) (any, error) { who = c.caller.Name; return nil, hidden }},
		{Method: http.MethodGet, Path: "/refuses", Needs: access.JobsRead, do: func(*call) (any, error) { return nil, invalid("no") }},
	})
	for _, path := range []string{"/fails", "/refuses"} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		is.True(!strings.Contains(w.Body.String(), hidden.Error()))
	}
	is.Equal(who, "cli:ana")
	is.Equal(failed, []error{hidden}) // a rejection is not reported, because the response already shows the whole error
}
