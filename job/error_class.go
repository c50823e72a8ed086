package job

import (
	"encoding/json"
	"errors"
	"strings"
)

// ErrorClass groups failures by cause. The set is closed, so that metrics can use it as a label.
type ErrorClass string

// The error classes.
const (
	ClassError          ErrorClass = "error"           // the handler returned an error
	ClassPanic          ErrorClass = "panic"           // the handler panicked or called runtime.Goexit
	ClassDatabase       ErrorClass = "database"        // the handler returned a database error; its code is the SQLSTATE
	ClassTimeout        ErrorClass = "timeout"         // the handler ran longer than its timeout
	ClassInactive       ErrorClass = "inactive"        // the handler gave no sign of life for too long
	ClassDeadline       ErrorClass = "deadline"        // the job did not finish within its maximum age
	ClassCrashLimit     ErrorClass = "crash_limit"     // the job's pods died or lost their leases too often
	ClassInvalidArgs    ErrorClass = "invalid_args"    // the arguments cannot be decoded
	ClassUnstorable     ErrorClass = "unstorable"      // the handler's result or the next step cannot be stored or is too large
	ClassChildrenFailed ErrorClass = "children_failed" // too many branches of the job's fan-out failed
)

// ErrorClasses lists every class.
func ErrorClasses() []ErrorClass {
	return []ErrorClass{ClassError, ClassPanic, ClassDatabase, ClassTimeout, ClassInactive, ClassDeadline, ClassCrashLimit, ClassInvalidArgs,
		ClassUnstorable, ClassChildrenFailed}
}

// Known reports whether c is one of [ErrorClasses].
func (c ErrorClass) Known() bool {
	for _, known := range ErrorClasses() {
		if c == known {
			return true
		}
	}
	return false
}

// MaxCodeBytes is the maximum length of an error code.
const MaxCodeBytes = 64

// Code attaches an error code, such as card_declined, to err. The code is stored with the failed job, and job lists can be filtered by it.
// A code has at most 64 bytes of A-Z a-z 0-9 _ - . : and /; any other character is stored as _. An error that has a Code() string method
// does not need Code. Code(code, nil) returns nil.
func Code(code string, err error) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

type coded struct {
	error
	code string
}

func (c *coded) Unwrap() error { return c.error }
func (c *coded) Code() string  { return c.code }

// CodeOf returns the code of the outermost error in err's chain that has one, or the empty string.
func CodeOf(err error) string {
	for err != nil {
		c, ok := errors.AsType[interface {
			error
			Code() string
		}](err)
		if !ok {
			return ""
		}
		if code := CleanCode(c.Code()); code != "" {
			return code
		}
		err = errors.Unwrap(c)
	}
	return ""
}

// SQLStateOf returns the SQLSTATE of the outermost database error in err's chain, or the empty string.
func SQLStateOf(err error) string {
	if s, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return CleanCode(s.SQLState())
	}
	return ""
}

// CleanCode returns the code in its stored form; see [Code].
func CleanCode(code string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-.:/", c) {
			return c
		}
		return '_'
	}, code[:min(len(code), MaxCodeBytes)])
}

// Failure describes a failed or cancelled job. It is available to the job that was submitted because of the failure.
type Failure struct {
	JobID      int64           `json:"job_id,string"`
	PipelineID int64           `json:"pipeline_id,string"`
	Kind       string          `json:"kind"`
	Subject    string          `json:"subject"`
	Key        string          `json:"key"`   // empty if there is none
	JSON       json.RawMessage `json:"args"`  // the arguments
	State      State           `json:"state"` // [Failed] or [Cancelled], unless the job has been retried since
	Reason     Reason          `json:"reason"`
	Error      string          `json:"error"`       // empty if there is none, for example after a cancellation
	ErrorClass ErrorClass      `json:"error_class"` // empty if there is none
	ErrorCode  string          `json:"error_code"`  // empty if there is none
	Attempt    int             `json:"attempt"`     // the last attempt, counted from 1; 0 if it never ran
}

// Args decodes the failed job's arguments into v.
func (f *Failure) Args(v any) error { return json.Unmarshal(f.JSON, v) }
