package view

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

// Any reports whether a filter selects less than everything. Children of fan-outs, in or out, are no selection.
func (f Filter) Any() bool {
	f.Children = nil
	return len(f.Asked()) > 0
}

// WithChildren reports whether the filter selects children of fan-outs too. A list of everything is easier to read without them. With
// any filter they count, so that a list shows what a command with the same filter is for.
func (f Filter) WithChildren() bool {
	if f.Children != nil {
		return *f.Children
	}
	return f.Any()
}

// Asked says what a filter asks for, in words as of the HTTP API.
func (f Filter) Asked() map[string]any {
	asked := map[string]any{}
	for name, value := range map[string]string{"kind": f.Kind, "lane": f.Lane, "subject": f.Subject, "reason": string(f.Reason),
		"error_class": string(f.ErrorClass), "error_code": f.ErrorCode} {
		if value != "" {
			asked[name] = value
		}
	}
	for name, id := range map[string]int64{"pipeline": f.Pipeline, "parent": f.Parent} {
		if id != 0 {
			asked[name] = fmt.Sprint(id)
		}
	}
	if len(f.States) > 0 {
		asked["state"] = f.States
	}
	if !f.Since.IsZero() {
		asked["since"] = f.Since
	}
	if f.Children != nil {
		asked["children"] = *f.Children
	}
	return asked
}
