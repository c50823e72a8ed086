package job

import (
	"encoding/json"
	"fmt"
	"time"
)

// Filter selects jobs. Zero fields match every job.
type Filter struct {
	States     []State
	Kind       string
	Lane       string
	Subject    string
	Key        string
	Pipeline   int64
	Parent     int64
	Children   *bool // whether to include children of fan-outs; see [Filter.WithChildren]
	Current    bool  // only the current run of each kind and subject, including children of fan-outs
	Since      time.Time
	Reason     Reason
	ErrorClass ErrorClass
	ErrorCode  string
	Failures   string // a failure set, as returned by GET /failures; only for Admin.RetryMany, without other fields
	Owner      string // the submitter
	Limit      int    // page size: default 50, at most 1000; commands ignore it
	Cursor     string // where the previous page ended; commands ignore it
}

// Validate rejects a reason, error class or error code that no job can have. Without this check, a typo would silently match no jobs.
func (f Filter) Validate() error {
	switch {
	case f.Reason != "" && f.Reason.States() == nil:
		return fmt.Errorf("unknown reason %q: want one of %v", f.Reason, Reasons())
	case f.ErrorClass != "" && !f.ErrorClass.Known():
		return fmt.Errorf("unknown error class %q: want one of %v", f.ErrorClass, ErrorClasses())
	case f.ErrorCode != CleanCode(f.ErrorCode):
		return fmt.Errorf("invalid error code %q: want at most %d bytes of A-Z a-z 0-9 _ - . : and /", f.ErrorCode, MaxCodeBytes)
	case f.Failures != "" && len(f.asked()) > 1:
		return fmt.Errorf("failures cannot be combined with other filters")
	}
	return nil
}

// Possible returns the states that matching jobs can have: the filter's states, or else those allowed by its error class or reason. An
// empty result means any state. If only failed or cancelled jobs can match, a list query reads only those jobs, which are few.
func (f Filter) Possible() []State {
	switch {
	case len(f.States) > 0:
		return f.States
	case f.ErrorClass != "" || f.ErrorCode != "":
		return []State{Failed}
	}
	return f.Reason.States()
}

// Any reports whether the filter restricts the selection. It ignores Children, Current, Owner, Limit and Cursor.
func (f Filter) Any() bool {
	f.Children = nil
	return len(f.asked()) > 0
}

// WithChildren reports whether the filter also selects children of fan-outs. By default, an unfiltered list omits them to stay readable,
// while a filtered list includes them so that it shows exactly the jobs that a command with the same filter would affect.
func (f Filter) WithChildren() bool {
	if f.Children != nil {
		return *f.Children
	}
	return f.Any()
}

// MarshalJSON encodes the fields that are set, except Current, Owner, Limit and Cursor, under their HTTP API names. Logs and audit entries
// use it.
func (f Filter) MarshalJSON() ([]byte, error) { return json.Marshal(f.asked()) }

func (f Filter) asked() map[string]any {
	asked := map[string]any{}
	for name, value := range map[string]string{"kind": f.Kind, "lane": f.Lane, "subject": f.Subject, "key": f.Key, "reason": string(f.Reason),
		"error_class": string(f.ErrorClass), "error_code": f.ErrorCode, "failures": f.Failures} {
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
