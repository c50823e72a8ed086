package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/runner"
)

// selecting is the flags that select jobs.
type selecting struct {
	states                                        []string
	kind, lane, subject, pipeline, parent, moment string
	children                                      string
	reason, class, code                           string
}

func (s *selecting) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&s.states, "state", nil, "only these states, separated by commas")
	f.StringVar(&s.kind, "kind", "", "only this kind")
	f.StringVar(&s.lane, "lane", "", "only this lane")
	f.StringVar(&s.subject, "subject", "", "only this subject")
	f.StringVar(&s.pipeline, "pipeline", "", "only this pipeline")
	f.StringVar(&s.parent, "parent", "", "only the steps after this job")
	f.StringVar(&s.moment, "since", "", "only those made since: 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.StringVar(&s.children, "children", "", "true or false: whether children of fan-outs count (default: with any other filter)")
	f.Lookup("children").NoOptDefVal = "true"
	f.StringVar(&s.reason, "job-reason", "", "only jobs that stand where they stand for this reason, such as timeout")
	f.StringVar(&s.class, "error-class", "", "only jobs that failed with an error of this class, such as panic")
	f.StringVar(&s.code, "error-code", "", "only jobs that failed with this code: an SQLSTATE, or their handler's own")
}

// any reports whether the flags select less than everything.
func (s *selecting) any() bool {
	return len(s.states) > 0 || s.kind+s.lane+s.subject+s.pipeline+s.parent+s.moment+s.reason+s.class+s.code != ""
}

// selection is the flags as the body of a command for many jobs.
func (s *selecting) selection() (api.Selection, error) {
	var body api.Selection
	selected, err := s.filter()
	if err != nil {
		return body, err
	}
	body.Filter.State, body.Filter.Kind, body.Filter.Lane, body.Filter.Subject = s.states, s.kind, s.lane, s.subject
	body.Filter.Pipeline, body.Filter.Parent, body.Filter.Since = s.pipeline, s.parent, s.moment
	body.Filter.Children = selected.Children
	body.Filter.Reason, body.Filter.ErrorClass, body.Filter.ErrorCode = s.reason, s.class, s.code
	return body, nil
}

func (s *selecting) filter() (f runner.Filter, err error) {
	f.Kind, f.Lane, f.Subject = s.kind, s.lane, s.subject
	if err := f.Why(s.reason, s.class, s.code); err != nil {
		return f, usage("--job-reason, --error-class, --error-code: %w", err)
	}
	if len(s.states) > 0 {
		if f.States, err = api.ParseStates(s.states); err != nil {
			return f, usage("--state: %w", err)
		}
	}
	for _, id := range []struct {
		flag, text string
		to         *int64
	}{{"--pipeline", s.pipeline, &f.Pipeline}, {"--parent", s.parent, &f.Parent}} {
		if id.text == "" {
			continue
		}
		if *id.to, err = api.ParseID(id.text); err != nil {
			return f, usage("%s: %w", id.flag, err)
		}
	}
	if s.moment != "" {
		if f.Since, err = api.ParseSince(s.moment, time.Now()); err != nil {
			return f, usage("--since: %w", err)
		}
	}
	if s.children != "" {
		if f.Children, err = api.ParseYes(s.children); err != nil {
			return f, usage("--children %w", err)
		}
	}
	return f, nil
}
