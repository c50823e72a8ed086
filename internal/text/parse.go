package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The errors of these parsers describe the mistake and the allowed values. Callers add the parameter's or flag's name.

// ParseID parses the ID of a job or pipeline.
func ParseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, fmt.Errorf("invalid id %q: want a positive whole number", text)
	}
	return id, nil
}

// ParseJobID parses the ID of a job or pipeline in a path. Its error matches [job.ErrNotFound], as if the job did not exist.
func ParseJobID(text string) (int64, error) {
	id, err := ParseID(text)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", job.ErrNotFound, err)
	}
	return id, nil
}

// ParseBool parses a boolean as [strconv.ParseBool] does. It returns a pointer, because filters may be unset.
func ParseBool(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("%q: want true or false", text)
	}
	return &yes, nil
}

// ParseStates parses job states. Each value is a state, or several separated by commas.
func ParseStates(values []string) ([]job.State, error) {
	var states []job.State
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		state := job.State(name)
		if !state.Known() {
			return nil, fmt.Errorf("unknown state %q: want one of %v", name, job.States())
		}
		states = append(states, state)
	}
	return states, nil
}

// ParseStatuses parses pipeline statuses. Each value is a status, or several separated by commas.
func ParseStatuses(values []string) (list []job.Status, err error) {
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		if !slices.Contains(job.Statuses(), job.Status(name)) {
			return nil, fmt.Errorf("unknown status %q: want one of %v", name, job.Statuses())
		}
		list = append(list, job.Status(name))
	}
	return list, nil
}

// ParseSince parses a time in RFC 3339 format, or a duration before now, such as 90m.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("invalid time %q: want RFC 3339, such as 2025-01-31T08:00:00Z, or an age such as 90m", text)
}

// ParseLimit parses the maximum number of rows on a page.
func ParseLimit(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		return 0, fmt.Errorf("%q: want 1 to 1000", text)
	}
	return n, nil
}
