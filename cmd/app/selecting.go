package app

import (
	"net/url"
	"strings"

	"github.com/trapeze-run/trapeze/internal/cli"

	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// jobFlags holds the flags that select jobs.
type jobFlags struct {
	states                                        []string
	kind, lane, subject, pipeline, parent, moment string
	children                                      string
	reason, class, code                           string
	failures                                      string // a failure group; for retries only
}

func (s *jobFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&s.states, "state", nil, "only these states, separated by commas")
	f.StringVar(&s.kind, "kind", "", "only this kind")
	f.StringVar(&s.lane, "lane", "", "only this lane")
	f.StringVar(&s.subject, "subject", "", "only this subject")
	f.StringVar(&s.pipeline, "pipeline", "", "only this pipeline")
	f.StringVar(&s.parent, "parent", "", "only jobs that follow this job")
	f.StringVar(&s.moment, "since", "", "only those created since a time such as 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.StringVar(&s.children, "children", "", "whether to include children of fan-outs, true or false (default: true with any other filter)")
	f.Lookup("children").NoOptDefVal = "true"
	f.StringVar(&s.reason, "job-reason", "", "only jobs whose state has this reason, such as timeout")
	f.StringVar(&s.class, "error-class", "", "only jobs that failed with an error of this class, such as panic")
	f.StringVar(&s.code, "error-code", "", "only jobs that failed with this code: an SQLSTATE, or a code of the handler")
}

// any reports whether at least one flag restricts the selection.
func (s *jobFlags) any() bool {
	return len(s.states) > 0 || s.kind+s.lane+s.subject+s.pipeline+s.parent+s.moment+s.reason+s.class+s.code+s.failures != ""
}

// selection returns the body of a bulk command for the flags.
func (s *jobFlags) selection() (api.Selection, error) {
	var body api.Selection
	if _, err := s.query(); err != nil {
		return body, err
	}
	if s.children != "" {
		body.Filter.Children, _ = text.ParseBool(s.children) // already validated by query
	}
	body.Filter.State, body.Filter.Kind, body.Filter.Lane, body.Filter.Subject = s.states, s.kind, s.lane, s.subject
	body.Filter.Pipeline, body.Filter.Parent, body.Filter.Since = s.pipeline, s.parent, s.moment
	body.Filter.Reason, body.Filter.ErrorClass, body.Filter.ErrorCode = s.reason, s.class, s.code
	return body, nil
}

// query returns the job list's query parameters for the flags. The error names the invalid flag.
func (s *jobFlags) query() (url.Values, error) {
	if err := (job.Filter{Reason: job.Reason(s.reason), ErrorClass: job.ErrorClass(s.class), ErrorCode: s.code}).Validate(); err != nil {
		return nil, cli.Usage("--job-reason, --error-class, --error-code: %w", err)
	}
	if len(s.states) > 0 {
		if _, err := text.ParseStates(s.states); err != nil {
			return nil, cli.Usage("--state: %w", err)
		}
	}
	for _, id := range [][2]string{{"--pipeline", s.pipeline}, {"--parent", s.parent}} {
		if _, err := text.ParseID(id[1]); err != nil && id[1] != "" {
			return nil, cli.Usage("%s: %w", id[0], err)
		}
	}
	if s.children != "" {
		if _, err := text.ParseBool(s.children); err != nil {
			return nil, cli.Usage("--children %w", err)
		}
	}
	return cli.QueryOf("state", strings.Join(s.states, ","), "kind", s.kind, "lane", s.lane, "subject", s.subject, "pipeline", s.pipeline,
		"parent", s.parent, "since", s.moment, "children", s.children, "reason", s.reason, "error_class", s.class, "error_code", s.code), checkSince(s.moment)
}

// checkSince validates --since. An age is sent as it is, because it refers to the database's clock.
func checkSince(since string) error {
	if _, err := text.ParseSince(since, time.Now()); since != "" && err != nil {
		return cli.Usage("--since: %w", err)
	}
	return nil
}
