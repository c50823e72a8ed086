package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// callError converts err to the error that a call returns. If workers react to an error, its text begins with a fixed word. The database
// driver's error text may contain host and user names, so it appears only in the log.
func callError(ctx context.Context, err error) error {
	says := func(code connect.Code, word string) error {
		return connect.NewError(code, errors.New(word+": "+truncate(err.Error())))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled): // the worker is gone or has already learned the outcome; nobody reads the reply
		return connect.NewError(connect.CodeCanceled, errors.New("the client cancelled the call"))
	case errors.Is(err, host.ErrClosed):
		return says(connect.CodeAborted, "worker_closed")
	case errors.Is(err, host.ErrSuperseded):
		return says(connect.CodeAborted, "superseded")
	case errors.Is(err, host.ErrWrongToken):
		return says(connect.CodePermissionDenied, "wrong_token")
	case errors.Is(err, job.ErrLeaseLost):
		stale := connect.NewError(connect.CodeFailedPrecondition, errors.New("stale_fence: "+truncate(err.Error())))
		if detail, err := connect.NewErrorDetail(&remotepb.ReportResultResponse{Status: remotepb.ReportResultResponse_STATUS_STALE}); err == nil {
			stale.AddDetail(detail)
		}
		return stale
	case errors.Is(err, job.ErrTooLarge):
		return says(connect.CodeResourceExhausted, "too_large")
	case errors.Is(err, job.ErrInvalid), errors.Is(err, job.ErrInvalidArgs):
		return says(connect.CodeInvalidArgument, "invalid")
	case errors.Is(err, job.ErrNotFound):
		return says(connect.CodeNotFound, "not_found")
	case errors.Is(err, job.ErrCancelled):
		return says(connect.CodeCanceled, "cancelled")
	case errors.Is(err, job.ErrOutcomeUnknown):
		slog.WarnContext(ctx, "outcome of a remote worker's call is unknown", telemetry.Err, err)
		return connect.NewError(connect.CodeUnavailable, errors.New("outcome_unknown: the database connection was lost before the reply"))
	case errors.Is(err, job.ErrShutdown):
		return says(connect.CodeUnavailable, "unavailable")
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("timed out: try again"))
	}
	slog.WarnContext(ctx, "remote worker's call failed", telemetry.Err, err)
	return connect.NewError(connect.CodeUnavailable, errors.New("unavailable: temporary failure: repeat the call here or on another pod"))
}

// maxErrorBytes is the maximum length of an error text in bytes. An error text can quote the worker's input and is sent in a header, and
// clients accept only about eight kilobytes of headers.
const maxErrorBytes = 1000

// truncate cuts text to maxErrorBytes bytes, plus an ellipsis, so that it fits in a header.
func truncate(text string) string {
	if len(text) > maxErrorBytes {
		return strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	return text
}
