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

func newPipelinesCommand() *cobra.Command {
	var (
		statuses    []string
		name, since string
		limit       int
	)
	c := &cobra.Command{
		Use:   "pipelines",
		Short: "List pipelines, newest first",
		Long: `List pipelines that have a name, or more than one planned or finished step, newest first. A pipeline is running until its last step
has finished. Status partial: the last step succeeded, but a child of a fan-out failed.`,
		Example: `  trapeze pipelines --status running
  trapeze pipelines --status failed,partial --since 24h
  trapeze pipelines --name "emissions 2024" --json | jq -r .id`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if len(statuses) > 0 {
				if _, err = text.ParseStatuses(statuses); err != nil {
					return cli.Usage("--status: %w", err)
				}
			}
			if err = checkSince(since); err != nil {
				return err
			}
			if limit < 0 {
				return cli.Usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			query := cli.QueryOf("status", strings.Join(statuses, ","), "name", name, "since", since, "limit", strconv.Itoa(limit))
			return onClient(c, func(at *cli.Client) error {
				now := time.Now()
				pipelines := cli.ListAll[job.Pipeline](c.Context(), at, "/pipelines", "pipelines", query)
				return cli.List(c, "ID NAME STATUS STEP KIND PROGRESS AGE NOTE", pipelines, func(p job.Pipeline) []string {
					step := strconv.Itoa(p.Step + 1)
					if planned := len(job.Following(p.Planned)); planned > 0 {
						step += " of " + strconv.Itoa(p.Step+1+planned)
					}
					return []string{strconv.FormatInt(p.ID, 10), text.Short(p.Name, 30), string(p.Status), step, p.Kind,
						cli.Progress(p.Progress), text.Ago(&p.CreatedAt, now), text.Short(cli.Text(p.Error), 60)}
				})
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only these statuses, separated by commas")
	f.StringVar(&name, "name", "", "only pipelines of this name")
	f.StringVar(&since, "since", "", "only those created since a time such as 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.IntVar(&limit, "limit", 50, "maximum number of rows; 0 for all")
	return c
}

func newAbortCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "abort PIPELINE",
		Short: "Cancel all unfinished jobs of a pipeline",
		Long: `Cancel every unfinished job of a pipeline, given the id of its first job, and start no next step. Waiting jobs end at once. Running
jobs end as cancelled when their handlers return.

Exit code 1 when the pipeline does not exist, or when all its jobs have finished.`,
		Example: "  trapeze abort 4711",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
			did, err := cli.Post[struct {
				Aborted []string `json:"aborted"`
			}](c.Context(), at, cli.Path("/pipelines/:id/abort", id), nil)
			if err != nil {
				return err
			}
			return cli.Done(c, map[string]any{"pipeline": strconv.FormatInt(id, 10), "aborted": did.Aborted},
				"pipeline %d aborted: %s", id, text.Count(len(did.Aborted), "job", "jobs"))
		}),
	}
}
