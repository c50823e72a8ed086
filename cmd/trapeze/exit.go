package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// The exit codes, which scripts rely on.
const (
	exitOK          = 0
	exitRefused     = 1 // or not found
	exitUsage       = 2 // or bad configuration
	exitUnavailable = 3 // database or server
	exitUnknown     = 4 // the outcome of a command
)

// codedError is an error with the exit code of its kind.
type codedError struct {
	code int
	err  error
}

// coder is an error that knows its exit code.
type coder interface {
	error
	ExitCode() int
}

func (e *codedError) ExitCode() int { return e.code }
func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// usage is an error of whoever typed the command or wrote the configuration.
func usage(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// unavailable is an error of something that does not answer.
func unavailable(format string, args ...any) error {
	return &codedError{exitUnavailable, fmt.Errorf(format, args...)}
}

// refused is the answer no.
func refused(format string, args ...any) error {
	return &codedError{exitRefused, fmt.Errorf(format, args...)}
}

// unknown is an error that leaves open what came of a command.
func unknown(format string, args ...any) error {
	return &codedError{exitUnknown, fmt.Errorf(format, args...)}
}

// exitCode is the exit code for an error.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	coded, known := errors.AsType[coder](err)
	switch {
	case err == nil:
		return exitOK
	case known:
		return coded.ExitCode()
	case is(job.ErrOutcomeUnknown):
		return exitUnknown
	case is(job.ErrInvalid, job.ErrInvalidArgs, job.ErrInvalidSetting, job.ErrInvalidSchedule, job.ErrKindInTwoLanes, migrate.ErrSchemaTooOld, migrate.ErrSchemaTooNew):
		return exitUsage
	case is(pgembed.ErrNoBinaries, pgembed.ErrInUse, context.DeadlineExceeded), store.Transient(err), denied(err):
		return exitUnavailable
	}
	return exitRefused
}

// denied reports whether the server was there and would not let us in: class 28 is authorization, 3D a database that
// does not exist.
func denied(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "28") || strings.HasPrefix(pg.Code, "3D"))
}

// signalContext ends with the first interrupt or termination.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// stopped reports whether err is only that of an interrupt.
func stopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled))
}
