package work

import (
	"context"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
)

// ErrorOf returns the class and the code of an error returned by a handler. The class is panic, database or error. The code of a database
// error is always its SQLSTATE, so if the handler set a code for one, the class is error instead.
func ErrorOf(err error) (job.ErrorClass, string) {
	if r, ok := errors.AsType[*reportedError](err); ok {
		return r.class, r.code
	}
	code := job.CodeOf(err)
	if _, ok := errors.AsType[*routine.Panic](err); ok || errors.Is(err, routine.ErrExited) {
		return job.ClassPanic, code
	}
	if state := job.SQLStateOf(err); state != "" && code == "" {
		return job.ClassDatabase, state
	}
	return job.ClassError, code
}

// ReadError calls the methods of a handler's error that the engine will call later, and returns the error. A panic in a later call would be
// attributed to the engine. If the error wraps itself, ReadError returns another one, because [errors.Is] would not return.
func ReadError(err error) error {
	if routine.Endless(err) {
		return fmt.Errorf("the handler returned an error that wraps itself (%T)", err)
	}
	_, _ = err.Error(), errors.Is(err, context.Canceled)
	_, _ = ErrorOf(err)
	return err
}

// reportedError is the error from a handler on a remote worker, with the class and code that the worker reported.
type reportedError struct {
	error
	class job.ErrorClass
	code  string
}

func (r *reportedError) Unwrap() error { return r.error }

// ReportedError returns a handler's error as reported by a remote worker. A worker can report only the classes that [ErrorOf] returns.
// Older workers report none.
func ReportedError(err error, class job.ErrorClass, code string) error {
	if class != job.ClassPanic && class != job.ClassDatabase {
		class = job.ClassError
	}
	return &reportedError{err, class, job.CleanCode(code)}
}

// sqlErrors maps SQLSTATEs raised by the schema's functions to errors of package job.
var sqlErrors = map[string]error{"TZ001": job.ErrInvalid, "TZ002": job.ErrUnknownLane, "TZ003": job.ErrKeyReused, "TZ004": job.ErrTooLarge, "TZ005": job.ErrInvalidArgs, "TZ006": job.ErrKeyHeld}

// sqlError is a database error that also matches an error of package job.
type sqlError struct{ is, err error }

func (e sqlError) Error() string   { return e.err.Error() }
func (e sqlError) Unwrap() []error { return []error{e.is, e.err} }

// SQLError converts an error from any driver. If a function of the schema raised the error, the result also matches the corresponding error
// of package job.
func SQLError(err error) error {
	raised, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if ok && sqlErrors[raised.SQLState()] != nil {
		return sqlError{sqlErrors[raised.SQLState()], err}
	}
	return err
}
