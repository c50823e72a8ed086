package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// codedError is an error that knows its exit code.
type codedError struct {
	code int
	err  error
}

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
	coded, known := errors.AsType[*codedError](err)
	answer, answered := errors.AsType[*answerError](err)
	switch {
	case err == nil:
		return exitOK
	case known:
		return coded.code
	case is(job.ErrOutcomeUnknown):
		return exitUnknown
	case is(job.ErrInvalid, job.ErrInvalidArgs, job.ErrInvalidSetting, job.ErrInvalidSchedule, job.ErrKindInTwoLanes, migrate.ErrSchemaTooOld, migrate.ErrSchemaTooNew):
		return exitUsage
	case answered:
		return answer.exit()
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

// oneLine makes an error one line that a terminal can show. The driver reports each address it tried on a line of its
// own, and some twice.
func oneLine(err error) string {
	var b strings.Builder
	said := map[string]bool{}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if line = strings.TrimSpace(line); line == "" || said[line] {
			continue
		}
		said[line] = true
		switch {
		case b.Len() == 0:
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return printable(b.String())
}
