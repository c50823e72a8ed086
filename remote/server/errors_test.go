package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
)

func TestDatabaseAddressInWorkerErrors(t *testing.T) {
	is := is.New(t)
	const driver = "failed to connect to `user=app database=prod`: write tcp 10.9.8.7:5432: %w"
	for _, c := range []struct {
		cause error
		code  connect.Code
	}{
		{errors.New("broken pipe"), connect.CodeUnavailable},
		{job.ErrOutcomeUnknown, connect.CodeUnavailable},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
		{context.Canceled, connect.CodeUnavailable}, // the pod, not the client, cancelled the call
	} {
		err := callError(t.Context(), fmt.Errorf(driver, c.cause))
		is.Equal(connect.CodeOf(err), c.code)
		is.True(!strings.Contains(err.Error(), "10.9.8.7") && !strings.Contains(err.Error(), "prod"))
	}
}

func TestWorkerErrorCodes(t *testing.T) {
	is := is.New(t)
	for word, cause := range map[string]error{
		"worker_closed": host.ErrClosed, "superseded": host.ErrSuperseded, "wrong_token": host.ErrWrongToken, "stale_fence": job.ErrLeaseLost,
		"too_large": job.ErrTooLarge, "invalid": job.ErrInvalidArgs, "not_found": job.ErrNotFound, "unavailable": job.ErrShutdown,
	} {
		err := callError(t.Context(), fmt.Errorf("report job 5: %w", cause))
		is.True(strings.Contains(err.Error(), ": "+word+": report job 5")) // the word is followed by a description of the failure
	}
	is.True(callError(t.Context(), nil) == nil)
}
