package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/runner"
)

// Handler is the API as an http.Handler, for hosts without an echo: take a prefix off with [http.StripPrefix]. It panics as [Mount] does.
func Handler(r *runner.Runner, o Options) http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = HandleError
	Mount(e.Group(""), r, o)
	return e
}
