package api

import (
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
)

// dryRun reports whether a request is only to tell what it would do.
func dryRun(c echo.Context) (bool, error) { return boolParam(c, "dry_run") }

// boolParam reads a parameter of the query that is true or false.
func boolParam(c echo.Context, name string) (bool, error) {
	text := c.QueryParam(name)
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid("%s %q: want true or false", name, text)
	}
	return yes, nil
}

// readBody reads a body of JSON; where none is required, an empty one leaves v as it is.
func readBody(c echo.Context, v any, required bool) error {
	if request := c.Request(); !required && (request.Body == nil || request.ContentLength == 0) {
		return nil
	}
	return readJSON(c, v)
}

// mostWait is how long a request may wait for quiet: shorter than what servers and proxies give an answer.
const mostWait = 50 * time.Second

// waitOf reads how long a command is to wait for quiet, from {"wait":"30s"} or the query; 0 is not at all.
func waitOf(c echo.Context) (time.Duration, error) {
	var body struct {
		Wait Delay `json:"wait"`
	}
	err := readBody(c, &body, false)
	if text := c.QueryParam("wait"); err == nil && text != "" {
		if bad := body.Wait.UnmarshalJSON([]byte(text)); bad != nil {
			err = invalid("wait %q: want seconds, or text such as 30s", text)
		}
	}
	if wait := time.Duration(body.Wait); err == nil && (wait < 0 || wait > mostWait) {
		err = invalid("wait %s: want 0 to %s in one request; ask again to wait longer", wait, mostWait)
	}
	return time.Duration(body.Wait), err
}

// nothingAsked refuses a body where there is nothing to say.
func nothingAsked(c echo.Context) error {
	return readBody(c, &struct{}{}, false)
}
