package work

import (
	"errors"

	"github.com/trapeze-run/trapeze/job"
)

// sqlErrors maps SQLSTATEs raised by the schema's functions to errors of package job.
var sqlErrors = map[string]error{"TZ001": job.ErrInvalid, "TZ002": job.ErrUnknownLane, "TZ003": job.ErrKeyReused, "TZ004": job.ErrTooLarge, "TZ005": job.ErrInvalidArgs}

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
