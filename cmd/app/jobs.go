package app

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newJobsCommand() *cobra.Command {
	var (
		which   jobFlags
		limit   int
		search  string
		current bool
	)
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, newest first",
		Example: `  trapeze jobs --state running,pending
  trapeze jobs --state failed --since 24h --json | jq -r .error
  trapeze jobs --pipeline 4711
  trapeze jobs --search 'refused args.user.id=7' --state failed
  trapeze jobs --current --kind factor_sync --subject 2025`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			query, err := which.query()
			if err != nil {
				return err
			}
			if search != "" {
				query.Set("search", search)
			}
			if current {
				query.Set("current", "true")
			}
			if limit < 0 {
				return cli.Usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			query.Set("limit", strconv.Itoa(limit))
			return onClient(c, func(at *cli.Client) error {
				now := time.Now()
				jobs := cli.ListAll[job.Job](c.Context(), at, "/jobs", "jobs", query)
				return cli.List(c, "ID KIND LANE SUBJECT STATE PRI TRY AGE NOTE", jobs, func(j job.Job) []string {
					return []string{
						strconv.FormatInt(j.ID, 10), j.Kind, j.Lane, text.Short(j.Subject, 30), string(j.State), strconv.Itoa(j.Priority),
						strconv.Itoa(j.Attempt), text.Ago(&j.CreatedAt, now), text.Short(remark(j), 60),
					}
				})
			})
		},
	}
	which.flags(c)
	c.Flags().StringVar(&search, "search", "", "only the job with this id, or jobs with this text in the kind, subject, submitter or error; also error=text and args.path=value")
	c.Flags().BoolVar(&current, "current", false, "only the current run of each kind and subject: the running job, else the latest")
	c.Flags().IntVar(&limit, "limit", 50, "maximum number of rows; 0 for all")
	return c
}

// remark returns the most important information about a job besides its state.
func remark(j job.Job) string {
	switch {
	case j.State == job.Failed, j.State == job.Cancelled:
		return failureText(j)
	case j.State.Terminal():
		if cli.Text(j.Outcome) == string(job.Warning) {
			return "warning"
		}
		return ""
	}
	parts := []string{}
	if j.CancelRequested {
		parts = append(parts, "being cancelled")
	}
	if j.State == job.Pending && j.RunAfter != nil && j.RunAfter.After(time.Now()) {
		parts = append(parts, "due "+text.Clock(j.RunAfter))
	}
	if p := cli.Progress(j.Progress); p != "" {
		parts = append(parts, p)
	}
	return strings.Join(parts, ", ")
}
