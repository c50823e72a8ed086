package api

import (
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/labstack/echo/v4"
)

// survive calls what answers a request. A panic is an error of that request, which the log has with its stack: net/http would only cut the
// connection, and tell its own log. An answer that has begun is cut off, so that nobody takes a part for the whole.
func survive(c echo.Context, do func() error) (err error) {
	defer func() {
		thrown := recover()
		if thrown == nil {
			return
		}
		if thrown == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
			panic(thrown)
		}
		err = &problem{status: http.StatusInternalServerError, code: "internal", message: "an error that should not happen: see the server's log",
			err: fmt.Errorf("panic: %v\n%s", thrown, debug.Stack())}
		if c.Response().Committed {
			HandleError(err, c)
			panic(http.ErrAbortHandler)
		}
	}()
	return do()
}
