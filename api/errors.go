package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// problem is an error and the response to it.
type problem struct {
	status  int
	code    string
	message string
	detail  string
	err     error

	retryAfter string // the Retry-After header in seconds, or empty
	refused    bool   // rejected because of its sender or origin; such a rejection is audited
}

func (p *problem) Error() string { return p.message }
func (p *problem) Unwrap() error { return p.err }

// invalid returns the error for a malformed request.
func invalid(format string, args ...any) error {
	return &problem{status: http.StatusBadRequest, code: "invalid_request", message: fmt.Sprintf(format, args...)}
}

// forbidden returns the error for a caller without a required permission. The rejection is audited.
func forbidden(format string, args ...any) error {
	return &problem{status: http.StatusForbidden, code: "forbidden", message: "permission denied", detail: fmt.Sprintf(format, args...), refused: true}
}

// knownErrors lists the errors that have their own codes, with more specific errors first.
var knownErrors = []struct {
	err    error
	status int
	code   string
}{
	{job.ErrOutcomeUnknown, http.StatusServiceUnavailable, "outcome_unknown"},
	{job.ErrUnknownKind, http.StatusBadRequest, "unknown_kind"},
	{job.ErrUnknownLane, http.StatusBadRequest, "unknown_lane"},
	{job.ErrTooLarge, http.StatusRequestEntityTooLarge, "too_large"},
	{job.ErrInvalidArgs, http.StatusBadRequest, "invalid_args"},
	{job.ErrInvalid, http.StatusBadRequest, "invalid_request"},
	{job.ErrKeyReused, http.StatusUnprocessableEntity, "idempotency_key_reused"},
	{job.ErrNotFound, http.StatusNotFound, "not_found"},
	{admin.ErrNoSuchRole, http.StatusNotFound, "not_found"},
	{job.ErrAlreadyTerminal, http.StatusConflict, "already_terminal"},
	{job.ErrNotAwaitingApproval, http.StatusConflict, "not_awaiting_approval"},
	{job.ErrOwnSubmission, http.StatusForbidden, "own_submission"},
	{job.ErrChanged, http.StatusConflict, "job_changed"},
	{job.ErrNotQueued, http.StatusConflict, "not_queued"},
	{job.ErrNotRunning, http.StatusConflict, "not_running"},
	{job.ErrNoAnswer, http.StatusGatewayTimeout, "no_answer"},
	{job.ErrNotFailed, http.StatusConflict, "not_failed"},
	{job.ErrStillEnding, http.StatusConflict, "still_ending"},
	{job.ErrPruned, http.StatusConflict, "no_longer_kept"},
	{job.ErrKeyHeld, http.StatusConflict, "unique_key_held"},
	{job.ErrNotTerminal, http.StatusConflict, "not_terminal"},
	{job.ErrPartOfPipeline, http.StatusConflict, "part_of_pipeline"},
	{job.ErrFailuresChanged, http.StatusConflict, "failures_changed"},
	{job.ErrWrongToken, http.StatusForbidden, "wrong_token"},
	{job.ErrInvalidSetting, http.StatusUnprocessableEntity, "invalid_request"},
	{job.ErrKindInTwoLanes, http.StatusConflict, "kind_in_two_lanes"},
	{job.ErrNoEngine, http.StatusConflict, "no_engine"},
	{job.ErrLaneNotEmpty, http.StatusConflict, "lane_not_empty"},
	{job.ErrUnknownPod, http.StatusNotFound, "not_found"},
	{job.ErrLeaseLost, http.StatusConflict, "stale_fence"},
	{job.ErrUnknownSchedule, http.StatusNotFound, "not_found"},
	{job.ErrScheduleMoved, http.StatusConflict, "schedule_changed"},
	{job.ErrInvalidSchedule, http.StatusUnprocessableEntity, "invalid_schedule"},
}

// ErrorOf returns the error from package job that has the given code, or nil if there is none. Clients use it.
func ErrorOf(code string) error {
	for _, k := range knownErrors {
		if k.code == code {
			return k.err
		}
	}
	return nil
}

// problemOf returns the response to an error.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &problem{status: http.StatusRequestEntityTooLarge, code: "too_large", message: "request body too large", detail: err.Error()}
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		return &problem{status: e.Code, code: routeCode(e.Code), message: strings.ToLower(http.StatusText(e.Code)), err: e.Internal}
	}
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			return &problem{status: k.status, code: k.code, message: k.err.Error(), detail: detailOf(err, k.err, k.status), err: err}
		}
	}
	if errors.Is(err, context.Canceled) {
		return &problem{status: clientClosedRequest, code: "unavailable", message: "the client closed the connection", err: err}
	}
	if store.Transient(err) || errors.Is(err, context.DeadlineExceeded) {
		// The driver's error text may contain host and user names, so it is written only to the log.
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the database does not respond: try again", err: err}
	}
	return &problem{status: http.StatusInternalServerError, code: "internal", message: "internal error: see the server's log", err: err}
}

// detailOf returns the detail of the response to an error. In a server error, the text after the known error comes from the driver. It may
// contain host and user names, so it is written only to the log.
func detailOf(err, known error, status int) string {
	detail := err.Error()
	if status < http.StatusInternalServerError {
		return detail
	}
	before, after, _ := strings.Cut(detail, known.Error())
	where, _, _ := strings.Cut(after, ": ") // such as " (submit mail as job 7)"
	return before + known.Error() + where
}

// clientClosedRequest is the status for a request whose client has disconnected. Nginx uses the same status, so logs and proxies recognize
// it.
const clientClosedRequest = 499

func routeCode(status int) string {
	switch status {
	case http.StatusNotFound:
		return "not_found"
	case http.StatusMethodNotAllowed:
		return "method_not_allowed"
	case http.StatusRequestEntityTooLarge:
		return "too_large"
	}
	return "invalid_request"
}

// HandleError writes an error in the API's format. Set it as the HTTPErrorHandler of an echo that serves only this API.
func HandleError(err error, c echo.Context) {
	p, id := problemOf(err), requestID(c)
	if p.status >= http.StatusInternalServerError {
		level := slog.LevelError
		if p.status == http.StatusServiceUnavailable { // a temporary condition, so the client should retry
			level = slog.LevelWarn
		}
		slog.Log(c.Request().Context(), level, "request failed", telemetry.Method, c.Request().Method, telemetry.Route, c.Path(),
			telemetry.Status, p.status, telemetry.RequestID, id, telemetry.Err, errors.Unwrap(p))
	}
	if c.Response().Committed {
		return
	}
	secure(c.Response().Header())
	if p.retryAfter != "" {
		c.Response().Header().Set("Retry-After", p.retryAfter)
	}
	_ = plain{c}.JSON(p.status, map[string]string{"code": p.code, "message": p.message, "detail": p.detail, "request_id": id})
}

var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,100}$`)

// requestID returns the caller's request ID if it is valid, or else a new one. It also sets the response header, from which later calls
// read the ID.
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

// secure sets the security headers of a response. With them, browsers load nothing from other sites, run no inline scripts or styles, allow
// no frames, and cache nothing. The referrer policy is same-origin. With no-referrer, a browser would also hide the origin of the
// dashboard's forms.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
