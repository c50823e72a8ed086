package response

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Problem is an error together with its response.
type Problem struct {
	Status  int
	Code    string // stable, for programs
	Message string
	Detail  string
	Err     error // for the log only

	RetryAfter string // the Retry-After header in seconds, or empty
	Refused    bool   // rejected because of its sender or origin; audited
}

func (p *Problem) Error() string { return p.Message }
func (p *Problem) Unwrap() error { return p.Err }

// Because returns the reason for a rejection.
func (p *Problem) Because() string {
	if p.Detail == "" {
		return p.Code
	}
	return p.Code + ": " + p.Detail
}

// Invalid returns the error for a malformed request.
func Invalid(format string, args ...any) error {
	return &Problem{Status: http.StatusBadRequest, Code: "invalid_request", Message: fmt.Sprintf(format, args...)}
}

// Forbidden returns the error for a caller without a required permission. The rejection is audited.
func Forbidden(format string, args ...any) error {
	return &Problem{Status: http.StatusForbidden, Code: "forbidden", Message: "permission denied", Detail: fmt.Sprintf(format, args...), Refused: true}
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

// FromCode returns the first error from package job that has the given code, or nil if there is none. Several errors share a code, so the
// result may be more general than the original error.
func FromCode(code string) error {
	for _, k := range knownErrors {
		if k.code == code {
			return k.err
		}
	}
	return nil
}

// ProblemOf returns the response to an error.
func ProblemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &Problem{Status: http.StatusRequestEntityTooLarge, Code: "too_large", Message: "request body too large", Detail: err.Error()}
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		return &Problem{Status: e.Code, Code: routeCode(e.Code), Message: strings.ToLower(http.StatusText(e.Code)), Err: e.Internal}
	}
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			return &Problem{Status: k.status, Code: k.code, Message: k.err.Error(), Detail: detailOf(err, k.err, k.status), Err: err}
		}
	}
	if errors.Is(err, context.Canceled) {
		return &Problem{Status: ClientClosedRequest, Code: "unavailable", Message: "the client closed the connection", Err: err}
	}
	if store.Full(err) {
		return &Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the database server has no free connection: try again",
			Detail: store.FullRemedy, Err: err}
	}
	if denied := store.Denied(err); denied != "" {
		return &Problem{Status: http.StatusInternalServerError, Code: "internal", Message: "the pod's database role lacks a permission: " + denied,
			Detail: store.GrantRemedy, Err: err}
	}
	if store.LockTimeout(err) {
		return &Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "another session of the database holds a lock: try again",
			Detail: "the statement waited for a lock and had no effect; trapeze doctor names the session", Err: err}
	}
	if store.Transient(err) || errors.Is(err, context.DeadlineExceeded) {
		// The driver's error text may contain host and user names, so it is written only to the log.
		p := &Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the database does not respond: try again", Err: err}
		if store.Undone(err) {
			p.Detail = "the statement got no connection, or lost it before the commit, and had no effect"
		}
		return p
	}
	return &Problem{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error: see the server's log", Err: err}
}

// Unrecorded returns the response to a request that was not performed, because err kept its audit entry from being written.
func Unrecorded(what string, err error) *Problem {
	p := *ProblemOf(err)
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

// ClientClosedRequest is the status for a request whose client has disconnected. Logs and proxies recognize it because nginx uses it too.
const ClientClosedRequest = 499

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
