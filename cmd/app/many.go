package app

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
)

// manyOrOne holds the flags of a command that applies to one job, given by its ID, or to all jobs that match a filter.
type manyOrOne struct {
	which  jobFlags
	dryRun bool
	yes    bool
	did    string // the past participle of the command, such as "cancelled"
	one    func(c *cobra.Command, at *cli.Client, id int64) error
	many   string // the API route for many jobs
}

func (m *manyOrOne) flags(c *cobra.Command) {
	m.which.flags(c)
	c.Flags().BoolVarP(&m.dryRun, "dry-run", "n", false, "show the number of matching jobs and the first ids, change nothing")
	c.Flags().BoolVarP(&m.yes, "yes", "y", false, "do not ask before many jobs are "+m.did)
}

func (m *manyOrOne) run(c *cobra.Command, words []string) error {
	switch {
	case len(words) == 1 && (m.which.any() || m.which.children != "" || m.dryRun):
		return cli.Usage("want an id, or a filter such as --kind, not both")
	case len(words) == 1:
		return onOne(m.one)(c, words)
	case !m.which.any():
		return cli.Usage("want an id, or a filter such as --kind; see %s --help", c.CommandPath())
	}
	selection, err := m.which.selection()
	if err != nil {
		return err
	}
	return onClient(c, func(at *cli.Client) error {
		if m.which.failures != "" {
			m.many = "/failures/retry" // this route needs no permission to manage workers
			if selection, err = failureSet(c, at, selection, m.which.failures); err != nil {
				return err
			}
		}
		if !m.dryRun && !m.yes && cli.CanAsk(c) {
			if err := m.confirm(c, at, selection); err != nil {
				return err
			}
		}
		selection.DryRun = m.dryRun
		did, err := cli.Post[api.Many](c.Context(), at, m.many, selection)
		if err != nil {
			return err
		}
		return cli.Done(c, did, "%s", m.summary(did))
	})
}

// failureSet returns a selection of the jobs that are now in a failure group and failed after the time given in s.
func failureSet(c *cobra.Command, at *cli.Client, s api.Selection, group string) (api.Selection, error) {
	found, err := cli.Get[failureGroup](c.Context(), at, cli.Path("/failures/:id", group), cli.QueryOf("since", s.Filter.Since, "limit", "1"))
	s.Filter.Since, s.Filter.Failures = "", found.Set
	return s, err
}

// unasked is the largest number of jobs that a bulk command changes without asking for confirmation.
const unasked = 100

// confirm asks the operator for confirmation before a command changes many jobs. It returns an error unless the operator agrees.
func (m *manyOrOne) confirm(c *cobra.Command, at *cli.Client, selection api.Selection) error {
	selection.DryRun = true
	would, err := cli.Post[api.Many](c.Context(), at, m.many, selection)
	if err != nil || would.Matched <= unasked || cli.Confirm(c, fmt.Sprintf("%d jobs would be %s; continue?", would.Matched, m.did)) {
		return err
	}
	return cli.Refused("no job was %s", m.did)
}

// summary describes the result of a bulk command on one line.
func (m *manyOrOne) summary(did api.Many) string {
	var b strings.Builder
	jobs := text.Count(did.Matched, "job", "jobs")
	switch {
	case did.DryRun && did.Matched == 0:
		b.WriteString("no job would be " + m.did)
	case did.DryRun:
		sample := strings.Join(did.Sample, " ")
		if did.Matched > len(did.Sample) {
			sample += " …"
		}
		fmt.Fprintf(&b, "%s would be %s: %s", jobs, m.did, sample)
	case did.Skipped > 0:
		fmt.Fprintf(&b, "%d of %s %s; the others changed state concurrently or were refused", did.Done, jobs, m.did)
	default:
		fmt.Fprintf(&b, "%s %s", jobs, m.did)
	}
	if did.More {
		b.WriteString("; more jobs match, run the command again")
	}
	return b.String()
}

func newRetryCommand() *cobra.Command {
	var args string
	m := manyOrOne{did: "retried", many: "/admin/workers/jobs/retry"}
	m.one = func(c *cobra.Command, at *cli.Client, id int64) error {
		other, err := jsonOf(c, "args", args)
		if err != nil {
			return err
		}
		again, err := tryAgain(c, at, cli.Path("/jobs/:id/retry", id), other)
		if err != nil {
			return err
		}
		line := "is pending again"
		if len(again) == 0 {
			line = fmt.Sprintf("waits; for the reason see trapeze job %d", id)
		} else if len(again) != 1 || again[0] != strconv.FormatInt(id, 10) {
			line = "waits again for " + text.Count(len(again), "job", "jobs")
		}
		return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "retried": again}, "job %d %s", id, line)
	}
	c := &cobra.Command{
		Use:   "retry [ID]",
		Short: "Retry a failed or cancelled job, or all that match a filter",
		Long: `Retry a failed or cancelled job, optionally with other arguments. Its attempts start again at 1, and its history is kept. For a
fan-out, only children that did not succeed run again. A job that needs approval awaits it again if it never ran, or if its arguments
change. For a whole pipeline, use trapeze pipeline retry.

A filter instead of an id retries all failed jobs that match, at most 10,000 at a time, and cancelled jobs only with
--state cancelled. To see the matching jobs first, use --dry-run. At a terminal, the command asks before it retries
more than 100 jobs; --yes skips the question.

Exit code 1 when the job does not exist, is neither failed nor cancelled, or when another job holds its unique key.`,
		Example: "  trapeze retry 4711\n  trapeze retry 4711 --args '{\"year\":2024}'\n  trapeze retry --kind csv_ingest --since 2h --dry-run\n  trapeze retry --failures 3f2a9c1e5b7d0846",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 && c.Flags().Changed("args") {
				return cli.Usage("--args needs the id of one job")
			}
			return m.run(c, words)
		},
	}
	m.flags(c)
	c.Flags().StringVar(&m.which.failures, "failures", "", "only the jobs of a group that trapeze failures lists; --since is then since when they failed, default 24h")
	c.Flags().StringVar(&args, "args", "", "other arguments, as JSON, @file, or - for standard input")
	return c
}

// tryAgain retries a job or a pipeline, with new arguments if args is not nil. It returns the IDs of the jobs that are pending again.
func tryAgain(c *cobra.Command, at *cli.Client, path string, args any) ([]string, error) {
	var body any
	if args != nil {
		body = map[string]any{"args": args}
	}
	answer, err := cli.Post[struct {
		Retried []string `json:"retried"`
	}](c.Context(), at, path, body)
	return answer.Retried, err
}
