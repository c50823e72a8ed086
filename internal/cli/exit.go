// Package cli is what commands share: settings from the environment, how a command ends, the client of the HTTP API, output, and the commands
// that more than one program uses.
//
//	settings.go           environment variables, including those of runner/env and api/env
//	exit.go               exit codes, the errors that carry them, and signals
//	client.go             calls the API of the server that a command names, or an API in this process that uses DATABASE_URL
//	output.go             tables that fit the terminal, JSON lines, colors, views that are redrawn, and confirmations
//	serve.go              serve: a pod with the HTTP API and the service for remote workers
//	doctor.go             doctor: checks the connection and the schema; all other findings come from the API
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// These are the exit codes. Scripts rely on them.
const (
	CodeOK          = 0
	CodeRefused     = 1 // rejected, not found, or any other error
	CodeUsage       = 2 // invalid usage or configuration
	CodeUnavailable = 3 // the database or the server does not respond
	CodeUnknown     = 4 // the outcome of the command is unknown
)

// codedError is an error with an exit code.
type codedError struct {
	code int
	err  error
}

// coder is implemented by errors that have an exit code, including those of other packages. The method is not named ExitCode, because
// *exec.ExitError has a method with that name.
type coder interface {
	error
	ExitsWith() int
}

func (e *codedError) ExitsWith() int { return e.code }
func (e *codedError) Error() string  { return e.err.Error() }
func (e *codedError) Unwrap() error  { return e.err }

// Usage returns an error for an invalid command line or configuration.
func Usage(format string, args ...any) error {
	return &codedError{CodeUsage, fmt.Errorf(format, args...)}
}

// Unavailable returns an error for a server that does not respond.
func Unavailable(format string, args ...any) error {
	return &codedError{CodeUnavailable, fmt.Errorf(format, args...)}
}

// Refused returns an error for a rejected command.
func Refused(format string, args ...any) error {
	return &codedError{CodeRefused, fmt.Errorf(format, args...)}
}

// Unknown returns an error for a command whose outcome is unknown.
func Unknown(format string, args ...any) error {
	return &codedError{CodeUnknown, fmt.Errorf(format, args...)}
}

// Code returns the exit code for an error, taken from the error itself or from its cause, or else [CodeRefused].
func Code(err error) int {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	coded, known := errors.AsType[coder](err)
	_, unsupported := errors.AsType[*schema.UnsupportedError](err)
	switch {
	case err == nil:
		return CodeOK
	case known:
		return coded.ExitsWith()
	case is(job.ErrOutcomeUnknown):
		return CodeUnknown
	case unsupported, is(job.ErrInvalid, job.ErrInvalidArgs, job.ErrInvalidSetting, job.ErrInvalidSchedule, job.ErrKindInTwoLanes, schema.ErrNoTables, schema.ErrNoData, schema.ErrRowSecurity, schema.ErrTooOld, schema.ErrTooNew):
		return CodeUsage
	case is(pgembed.ErrNoBinaries, pgembed.ErrInUse, context.DeadlineExceeded), store.Transient(err), isDenied(err):
		return CodeUnavailable
	}
	return CodeRefused
}

// isDenied reports whether the server rejected the connection. SQLSTATE class 28 means failed authorization, and class 3D a missing
// database.
func isDenied(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "28") || strings.HasPrefix(pg.Code, "3D"))
}

// OnSignal returns a context that is cancelled by the first interrupt or termination signal.
func OnSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// Stopped reports whether err is merely a consequence of an interrupt or termination signal.
func Stopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled))
}
