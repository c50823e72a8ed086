package app

import (
	"math"
	"net/http"

	"github.com/trapeze-run/trapeze/internal/cli"

	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newRetentionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "retention",
		Short: "Set how long finished jobs of a kind are kept",
		Long: `The pods set how long finished jobs are kept in each state (TRAPEZE_RETENTION_SUCCEEDED and so on). A kind can override it for
each final state: succeeded, failed or cancelled. An override takes effect with the next maintenance run, within ten minutes. Deleted
jobs cannot be restored.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRetentionListCommand(), newRetentionSetCommand(), newRetentionRemoveCommand())
	return c
}

func newRetentionListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List kinds with their own retention",
		Example: "  trapeze retention ls",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				list := cli.ListAll[job.Retention](c.Context(), at, "/admin/workers/retention", "retention", nil)
				return cli.List(c, "KIND STATE KEPT", list, func(retention job.Retention) []string {
					return []string{retention.Kind, string(retention.State), retentionText(&retention.Keep)}
				})
			})
		},
	}
}

func newRetentionSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set KIND STATE TIME",
		Short: "Set how long finished jobs of a kind and state are kept",
		Long: `Set how long finished jobs of a kind and state are kept: a duration such as 36h or 90d, or forever. Days are UTC days: jobs are deleted
when the day on which they finished has been over for that long. Every kind with a very long retention slows down reads of finished jobs
a little, so use it for few kinds. Give all kinds of a pipeline the same retention.`,
		Example: "  trapeze retention set report failed 90d\n  trapeze retention set audit_export succeeded forever --reason \"the auditors\"",
		Args:    cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			keep, err := parseKeep(args[2])
			if err != nil {
				return err
			}
			return changeRetention(c, http.MethodPut, args, map[string]job.Seconds{"keep_s": job.Seconds(keep)})
		},
	}
}

func newRetentionRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm KIND STATE",
		Short:   "Remove the retention of a kind and state; the default applies",
		Example: "  trapeze retention rm report failed",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return changeRetention(c, http.MethodDelete, args, nil)
		},
	}
}

func changeRetention(c *cobra.Command, method string, args []string, body any) error {
	return onClient(c, func(at *cli.Client) error {
		path := cli.Path("/admin/workers/retention/:kind/:state", args[0], args[1])
		done, err := cli.Do[job.RetentionChanged](c.Context(), at, method, path, body)
		if err != nil {
			return err
		}
		news := "before: " + retentionText(done.Before)
		if !done.Changed {
			news = "unchanged"
		}
		return cli.Done(c, done, "retention of %s jobs of kind %s: %s; %s", done.State, done.Kind, retentionText(done.After), news)
	})
}

const day = 24 * time.Hour

// retentionText formats a retention period, in whole days if possible.
func retentionText(keep *job.Seconds) string {
	switch {
	case keep == nil:
		return "default"
	case *keep == 0:
		return "forever"
	case keep.Duration()%day == 0:
		return strconv.FormatInt(int64(keep.Duration()/day), 10) + "d"
	}
	return keep.String()
}

// parseKeep parses a retention period in whole seconds or days. It returns 0 for "forever".
func parseKeep(text string) (time.Duration, error) {
	if text == "forever" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseInt(days, 10, 32); err == nil && n > 0 {
			return time.Duration(min(n, int64(math.MaxInt64/day))) * day, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d%time.Second != 0 {
		return 0, cli.Usage("%q: want a duration of whole seconds, such as 36h or 90d, or forever", text)
	}
	return d, nil
}
