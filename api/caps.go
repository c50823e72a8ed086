package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// cap applies the caps of a principal's roles to s. It returns an error if s sets a higher value. A priority that s does not set is the
// default, or the cap if that is lower.
func (s *Submission) cap(caps access.Caps) error {
	if limit := caps.Priority; limit != nil {
		if s.Priority == nil && *limit < job.DefaultPriority {
			s.Priority = limit
		}
		priorities := []*int{s.Priority}
		for _, step := range s.Chain {
			priorities = append(priorities, step.Priority)
		}
		for _, asked := range priorities {
			if asked != nil && *asked > *limit {
				return aboveCap("priority", *asked, *limit)
			}
		}
	}
	if limit := caps.Delay; limit != nil && time.Duration(s.Delay) > *limit {
		return aboveCap("delay", time.Duration(s.Delay), *limit)
	}
	if limit := caps.Attempts; limit != nil && s.MaxAttempts != nil && *s.MaxAttempts > *limit {
		return aboveCap("max_attempts", *s.MaxAttempts, *limit)
	}
	return nil
}

// aboveCap returns the error for a submission that exceeds a cap. The rejection is audited.
func aboveCap[T any](what string, asked, limit T) error {
	return &problem{status: http.StatusForbidden, code: "above_cap", message: fmt.Sprintf("%s %v is above your cap of %v", what, asked, limit),
		detail: fmt.Sprintf("submit with %s %v or less, or ask for a role with a higher cap", what, limit), refused: true}
}
