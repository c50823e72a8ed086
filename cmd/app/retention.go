package app

import (
	"math"
	"net/http"

	"github.com/trapeze-run/trapeze/internal/cli/client"
	"github.com/trapeze-run/trapeze/internal/cli/show"

	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newRetentionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "retention",
		Short: "Say for how long kinds are kept",
		Long: `Jobs that have ended are kept as long as the pods say for their state (TRAPEZE_RETENTION_SUCCEEDED and so on). A kind that is to be
kept for longer, or not as long, has a time of its own for each state it may end in: succeeded, failed or cancelled. It counts from the next
round of the maintenance on, within ten minutes; what has gone then does not come back.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRetentionListCommand(), newRetentionSetCommand(), newRetentionRemoveCommand())
	return c
}

func newRetentionListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the kinds that are kept for a time of their own",
		Example: "  trapeze retention ls",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *client.Client) error {
				list := client.List[job.Retention](c.Context(), at, "/admin/workers/retention", "retention", nil)
				return show.List(c, "KIND STATE KEPT", list, func(one job.Retention) []string { return []string{one.Kind, string(one.State), kept(&one.Keep)} })
			})
		},
	}
}

func newRetentionSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set KIND STATE TIME",
		Short: "Say for how long jobs of a kind are kept that ended in a state",
		Long: `Say for how long jobs of a kind are kept that ended in a state: a length of time such as 36h or 90d, or forever. Days are of UTC:
jobs go when the day on which they ended has been over for that long. A kind that is kept for very long costs a little whenever an ended
job is read: do it for few. Keep the kinds of one pipeline for the same time.`,
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
		Short:   "Keep jobs of a kind that ended in a state as all others",
		Example: "  trapeze retention rm report failed",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return changeRetention(c, http.MethodDelete, args, nil)
		},
	}
}

func changeRetention(c *cobra.Command, method string, args []string, body any) error {
	return onClient(c, func(at *client.Client) error {
		path := client.Path("/admin/workers/retention/:kind/:state", args[0], args[1])
		done, err := client.Do[job.RetentionChanged](c.Context(), at, method, path, body)
		if err != nil {
			return err
		}
		news := "were kept " + kept(done.Before)
		if !done.Changed {
			news = "as before"
		}
		return show.Done(c, done, "%s jobs of kind %s are kept %s; %s", done.State, done.Kind, kept(done.After), news)
	})
}

const day = 24 * time.Hour

// kept says for how long something is kept: in days where they are whole.
func kept(keep *job.Seconds) string {
	switch {
	case keep == nil:
		return "as all others"
	case *keep == 0:
		return "forever"
	case keep.Duration()%day == 0:
		return strconv.FormatInt(int64(keep.Duration()/day), 10) + "d"
	}
	return keep.String()
}

// parseKeep reads a length of time in whole seconds, in days too; forever is 0.
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
		return 0, exit.Usage("%q: want a length of time of whole seconds, such as 36h or 90d, or forever", text)
	}
	return d, nil
}
