package api

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"regexp"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// ErrorOf returns the error from package job that has the given code, or nil if there is none. It is meant for clients.
func ErrorOf(code string) error { return response.FromCode(code) }

// HandleError writes an error in the API's format. Set it as the HTTPErrorHandler of an echo instance that serves only this API.
func HandleError(err error, c echo.Context) {
	p, id := response.ProblemOf(err), requestID(c)
	if p.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if p.Status == http.StatusServiceUnavailable { // temporary, so the client should retry
			level = slog.LevelWarn
		}
		slog.Log(c.Request().Context(), level, "request failed", telemetry.Method, c.Request().Method, telemetry.Route, c.Path(),
			telemetry.Status, p.Status, telemetry.RequestID, id, telemetry.Err, errors.Unwrap(p))
	}
	if c.Response().Committed {
		return
	}
	secure(c.Response().Header())
	if p.RetryAfter != "" {
		c.Response().Header().Set("Retry-After", p.RetryAfter)
	}
	_ = plain{c}.JSON(p.Status, map[string]string{"code": p.Code, "message": p.Message, "detail": p.Detail, "request_id": id})
}

var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,100}$`)

// requestID returns the caller's request ID if it is valid, or else a new one. It also sets the response header, where later calls find the
// ID.
func requestID(c echo.Context) string {
	if id := c.Response().Header().Get(echo.HeaderXRequestID); validRequestID.MatchString(id) {
		return id
	}
	id := c.Request().Header.Get(echo.HeaderXRequestID)
	if !validRequestID.MatchString(id) {
		id = rand.Text()
	}
	c.Response().Header().Set(echo.HeaderXRequestID, id)
	return id
}

// secure sets the security headers of a response. With them, browsers load nothing from other sites, run no inline scripts or styles, do
// not show the page in a frame, and cache nothing. The referrer policy is same-origin because no-referrer would also hide the origin of the
// dashboard's forms.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
