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

// problem is an error together with its response.
type problem struct {
	Status  int
	Code    string // stable, for programs
	Message string
	Detail  string
	Err     error // for the log only

	RetryAfter string // the Retry-After header in seconds, or empty
	Refused    bool   // rejected because of its sender or origin; audited
}

func (p *problem) Error() string { return p.Message }
func (p *problem) Unwrap() error { return p.Err }

// Because returns the reason for a rejection.
func (p *problem) Because() string {
	if p.Detail == "" {
		return p.Code
	}
	return p.Code + ": " + p.Detail
}

// invalid returns the error for a malformed request.
func invalid(format string, args ...any) error {
	return &problem{Status: http.StatusBadRequest, Code: "invalid_request", Message: fmt.Sprintf(format, args...)}
}

// forbidden returns the error for a caller without a required permission. The rejection is audited.
func forbidden(format string, args ...any) error {
	return &problem{Status: http.StatusForbidden, Code: "forbidden", Message: "permission denied", Detail: fmt.Sprintf(format, args...), Refused: true}
}

// knownErrors lists the errors that have separate codes, more specific errors first.
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
	{job.ErrConflict, http.StatusConflict, "conflict"},
	{job.ErrNotQueued, http.StatusConflict, "not_queued"},
	{job.ErrNotRunning, http.StatusConflict, "not_running"},
	{job.ErrNoAnswer, http.StatusGatewayTimeout, "no_answer"},
	{job.ErrNotFailed, http.StatusConflict, "not_failed"},
	{job.ErrStillEnding, http.StatusConflict, "still_ending"},
	{job.ErrPruned, http.StatusConflict, "no_longer_kept"},
	{job.ErrKeyHeld, http.StatusConflict, "unique_key_held"},
	{job.ErrNotTerminal, http.StatusConflict, "not_terminal"},
	{job.ErrPartOfPipeline, http.StatusConflict, "part_of_pipeline"},
	{job.ErrWrongToken, http.StatusForbidden, "wrong_token"},
	{job.ErrInvalidSetting, http.StatusUnprocessableEntity, "invalid_request"},
	{job.ErrKindInTwoLanes, http.StatusConflict, "kind_in_two_lanes"},
	{job.ErrNoEngine, http.StatusConflict, "no_engine"},
	{job.ErrLaneNotEmpty, http.StatusConflict, "lane_not_empty"},
	{job.ErrUnknownPod, http.StatusNotFound, "not_found"},
	{job.ErrLeaseLost, http.StatusConflict, "stale_fence"},
	{job.ErrUnknownSchedule, http.StatusNotFound, "not_found"},
	{job.ErrInvalidSchedule, http.StatusUnprocessableEntity, "invalid_schedule"},
}

// ErrorOf returns the first error from package job that has the given code, or nil if there is none. Several errors share a code, so the
// result may be more general than the original error. It is meant for clients.
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
		return &problem{Status: http.StatusRequestEntityTooLarge, Code: "too_large", Message: "request body too large", Detail: err.Error()}
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		return &problem{Status: e.Code, Code: routeCode(e.Code), Message: strings.ToLower(http.StatusText(e.Code)), Err: e.Internal}
	}
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			return &problem{Status: k.status, Code: k.code, Message: k.err.Error(), Detail: detailOf(err, k.err, k.status), Err: err}
		}
	}
	if errors.Is(err, context.Canceled) {
		return &problem{Status: clientClosedRequest, Code: "unavailable", Message: "the client closed the connection", Err: err}
	}
	if store.Full(err) {
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the database server has no free connection: try again",
			Detail: store.FullRemedy, Err: err}
	}
	if denied := store.Denied(err); denied != "" {
		return &problem{Status: http.StatusInternalServerError, Code: "internal", Message: "the pod's database role lacks a permission: " + denied,
			Detail: store.GrantRemedy, Err: err}
	}
	if store.LockTimeout(err) {
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "another session of the database holds a lock: try again",
			Detail: "the statement waited for a lock and had no effect; trapeze doctor names the session", Err: err}
	}
	if store.Transient(err) || errors.Is(err, context.DeadlineExceeded) {
		// The driver's error text may contain host and user names, so it is written only to the log.
		p := &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the database does not respond: try again", Err: err}
		if store.Undone(err) {
			p.Detail = "the statement got no connection, or lost it before the commit, and had no effect"
		}
		return p
	}
	return &problem{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error: see the server's log", Err: err}
}

// unrecorded returns the response to a request that was not performed, because err kept its audit entry from being written.
func unrecorded(what string, err error) *problem {
	p := *problemOf(err)
	p.Message = what + " could not be recorded in the audit log: " + p.Message
	return &p
}

// detailOf returns the detail of the response to an error. In a server error, the driver's text follows the known error. That text may
// contain host and user names, so it is written only to the log.
func detailOf(err, known error, status int) string {
	detail := err.Error()
	if status < http.StatusInternalServerError {
		return detail
	}
	before, after, found := strings.Cut(detail, known.Error())
	if !found { // err matches the known error but does not contain its text
		return known.Error()
	}
	where, _, _ := strings.Cut(after, ": ") // such as " (submit mail as job 7)"
	return before + known.Error() + where
}

// clientClosedRequest is the status for a request whose client has disconnected. Logs and proxies recognize it because nginx uses it too.
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

// HandleError writes an error in the API's format. Set it as the HTTPErrorHandler of an echo instance that serves only this API.
func HandleError(err error, c echo.Context) {
	p, id := problemOf(err), requestID(c)
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
