package store

import (
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// Why sets the filters for why jobs stand where they stand: a reason, an error class and an error code; an empty one selects all. What no
// job can have is an error, because an empty list would pass for an answer.
func (f *Filter) Why(reason, class, code string) error {
	f.Reason, f.ErrorClass, f.ErrorCode = job.Reason(reason), job.ErrorClass(class), code
	switch {
	case reason != "" && f.Reason.States() == nil:
		return fmt.Errorf("no reason %q: want one of %v", reason, job.Reasons())
	case class != "" && !f.ErrorClass.Known():
		return fmt.Errorf("no error class %q: want one of %v", class, job.ErrorClasses())
	case code != job.CleanCode(code):
		return fmt.Errorf("no error code %q: want at most %d bytes of A-Z a-z 0-9 _ - . : and /", code, job.MaxCodeBytes)
	}
	return nil
}

// Possible returns the states that can match the filter: those that it names, or else those of its error class or reason; none means any.
// A list begins with the few jobs that failed or were cancelled when only these can match.
func (f Filter) Possible() []job.State {
	switch {
	case len(f.States) > 0:
		return f.States
	case f.ErrorClass != "" || f.ErrorCode != "":
		return []job.State{job.Failed}
	}
	return f.Reason.States()
}
