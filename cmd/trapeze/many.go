package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
)

// manyOrOne is the flags of a command that is for one job, by its id, or for all jobs of a filter.
type manyOrOne struct {
	which  selecting
	dryRun bool
	did    string // what was done: cancelled
	one    func(c *cobra.Command, at *server, id int64) error
	many   func(at *server, ctx context.Context, f api.Selection) (api.Many, error)
}

func (m *manyOrOne) flags(c *cobra.Command) {
	m.which.flags(c)
	c.Flags().BoolVarP(&m.dryRun, "dry-run", "n", false, "only tell how many jobs a filter selects, and the first of them")
}

func (m *manyOrOne) run(c *cobra.Command, words []string) error {
	switch {
	case len(words) == 1 && (m.which.any() || m.dryRun):
		return usage("give an id, or a filter such as --kind; not both")
	case len(words) == 1:
		return onOne(m.one)(c, words)
	case !m.which.any():
		return usage("give an id, or a filter such as --kind; see %s --help", c.CommandPath())
	}
	selection, err := m.which.selection()
	if err != nil {
		return err
	}
	selection.DryRun = m.dryRun
	return onBackend(c, func(at *server) error {
		did, err := m.many(at, c.Context(), selection)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c, did)
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), m.told(did))
		return err
	})
}

// told says in a line what became of many jobs.
func (m *manyOrOne) told(did api.Many) string {
	var b strings.Builder
	jobs := countOf(did.Matched, "job", "jobs")
	switch {
	case did.DryRun && did.Matched == 0:
		b.WriteString("no job would be " + m.did)
	case did.DryRun:
		sample := strings.Join(did.Sample, " ")
		if did.Matched > len(did.Sample) {
			sample += " …"
		}
		fmt.Fprintf(&b, "%s would be %s: %s", jobs, m.did, sample)
	case did.Passed > 0:
		fmt.Fprintf(&b, "%d of %s %s; the others had moved meanwhile, or could not be", did.Done, jobs, m.did)
	default:
		fmt.Fprintf(&b, "%s %s", jobs, m.did)
	}
	if did.More {
		b.WriteString("; there are more: give the command again")
	}
	return b.String()
}
