package app

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/text"
)

func newFailuresCommand() *cobra.Command {
	var (
		since, kind string
		limit       int
	)
	c := &cobra.Command{
		Use:   "failures [GROUP]",
		Short: "List failed jobs grouped by kind and error",
		Long: `List the jobs that failed, grouped by kind and error, the largest group first. Errors of a group differ only in numbers, ids,
hexadecimal values and quoted text. With the id of a group, list its jobs. The command reads at most 10,000 failed jobs; if more failed, it
prints on stderr how far back it has read. RETRYING counts the jobs whose latest attempt failed with the error and which wait for the next.

trapeze retry --failures GROUP retries the jobs of a group.`,
		Example: `  trapeze failures --since 1h
  trapeze failures 3f2a9c1e5b7d0846
  trapeze retry --failures 3f2a9c1e5b7d0846 --dry-run`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, words []string) (err error) {
			if err = checkSince(since); err != nil {
				return err
			}
			if limit < 1 || limit > 1000 {
				return cli.Usage("--limit %d: want 1 to 1000", limit)
			}
			if len(words) == 1 && kind != "" {
				return cli.Usage("want a group or --kind, not both")
			}
			return onClient(c, func(at *cli.Client) error {
				query := cli.QueryOf("since", since, "limit", strconv.Itoa(limit))
				if len(words) == 1 {
					return printMembers(c, at, words[0], query)
				}
				query.Set("kind", kind)
				return printFailures(c, at, query)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&since, "since", "24h", "only jobs that failed since a time such as 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.StringVar(&kind, "kind", "", "only this kind")
	f.IntVar(&limit, "limit", 50, "maximum number of rows")
	return c
}

// printFailures prints failure groups.
func printFailures(c *cobra.Command, at *cli.Client, query url.Values) error {
	now := time.Now()
	found, err := cli.Get[failures.List](c.Context(), at, "/failures", query)
	if err != nil {
		return err
	}
	if !found.Complete {
		fmt.Fprintf(c.ErrOrStderr(), "only the failed jobs since %s were read: more jobs have failed\n", text.Clock(&found.Since))
	}
	return cli.List(c, "ID KIND JOBS RETRYING FIRST LAST NEWEST ERROR", cli.Rows(found.Groups), func(g failures.Group) []string {
		return []string{g.ID, g.Kind, strconv.Itoa(g.Jobs), strconv.Itoa(g.Retrying), text.Ago(&g.First, now), text.Ago(&g.Last, now), strconv.FormatInt(g.Newest, 10), g.Error}
	})
}

// failureGroup is the response to GET /failures/:id.
type failureGroup struct {
	failures.Group
	Members []failures.Job `json:"members"`
}

// printMembers prints the jobs in a failure group.
func printMembers(c *cobra.Command, at *cli.Client, id string, query url.Values) error {
	now := time.Now()
	found, err := cli.Get[failureGroup](c.Context(), at, cli.Path("/failures/:id", id), query)
	if err != nil {
		return err
	}
	return cli.List(c, "ID KIND SUBJECT TRY FAILED ERROR", cli.Rows(found.Members), func(failed failures.Job) []string {
		return []string{strconv.FormatInt(failed.ID, 10), failed.Kind, text.Short(failed.Subject, 30), strconv.Itoa(failed.Attempt), text.Ago(&failed.FailedAt, now), failed.Error}
	})
}
