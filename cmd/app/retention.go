package app

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newRetentionCommand() *cobra.Command {
	return parent(&cobra.Command{
		Use:   "retention",
		Short: "Set how long finished jobs of a kind are kept",
		Long: `The pods set how long finished jobs are kept in each state (TRAPEZE_RETENTION_SUCCEEDED and so on). A kind can override it for
each final state: succeeded, failed or cancelled. An override takes effect with the next maintenance run, within ten minutes. Deleted
jobs cannot be restored.`,
	}, newRetentionListCommand(), newRetentionSetCommand(), newRetentionRemoveCommand())
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

func newEraseCommand() *cobra.Command {
	var e api.Erasure
	c := &cobra.Command{
		Use:   "erase",
		Short: "Erase the data of a subject's finished jobs",
		Long: `Erase args, results, errors, keys, checkpoints, progress and the contents of events of all finished jobs of a subject, and of
the jobs that followed from them: later steps, children and on-failure jobs. Kinds, states and times are kept. It cannot be undone.

Jobs whose pipeline has not finished are kept. Cancel them first, for example with trapeze cancel --subject, and repeat the command.
Exit code 1 when jobs or schedules of the subject remain. The audit log records the erasure under a hash of the subject: do not name the
subject in --reason.

It reads all jobs, and needs more database permissions than a pod: see docs/erasure.md.`,
		Example: "  trapeze erase --subject customer:4711 --dry-run\n  trapeze erase --subject customer:4711",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if e.Subject == "" {
				return cli.Usage("--subject is required")
			}
			return onClient(c, func(at *cli.Client) error { return erase(c, at, e) })
		},
	}
	f := c.Flags()
	f.StringVar(&e.Subject, "subject", "", "the subject whose data is erased")
	f.StringVar(&e.Kind, "kind", "", "only jobs of this kind, and jobs that followed from them")
	f.BoolVarP(&e.DryRun, "dry-run", "n", false, "count the jobs and change nothing")
	return c
}

// erase repeats the request until all jobs have been processed, and then prints the totals.
func erase(c *cobra.Command, at *cli.Client, e api.Erasure) error {
	var all api.Erased
	for {
		did, err := cli.Post[api.Erased](c.Context(), at, "/admin/subjects/erase", e)
		if err != nil {
			return err
		}
		did.Erased, did.Open = did.Erased+all.Erased, did.Open+all.Open
		did.Sample = append(all.Sample, did.Sample...)
		all = did
		if e.After = did.Next; e.After == "" {
			break
		}
	}
	all.Sample = all.Sample[:min(len(all.Sample), 10)]
	would := ""
	if all.DryRun {
		would = "would be "
	}
	line := fmt.Sprintf("%s %serased, and the subject %sremoved from %s", text.Count(all.Erased, "job", "jobs"), would, would,
		text.Count(all.AuditEntries, "audit entry", "audit entries"))
	var stay []string
	if all.Open > 0 {
		stay = append(stay, fmt.Sprintf("%s: they, or jobs that followed from them, have not ended (%s): cancel them or let them end, and repeat the command",
			text.Count(all.Open, "job stays", "jobs stay"), strings.Join(all.Sample, " ")))
	}
	if len(all.Schedules) > 0 {
		stay = append(stay, "schedules submit jobs of the subject ("+strings.Join(all.Schedules, " ")+"): delete them with trapeze cron rm, and repeat the command")
	}
	if all.DryRun && len(stay) > 0 {
		line += "; " + strings.Join(stay, "; ")
	}
	if len(all.Engines) > 0 {
		line += "; copies of jobs that ran on " + strings.Join(all.Engines, " and ") + " remain there: delete those runs as docs/erasure.md describes"
	}
	if err := cli.Done(c, all, "%s", line); err != nil || all.DryRun {
		return err
	}
	if len(stay) > 0 {
		return cli.Refused("%s", strings.Join(stay, "; "))
	}
	return nil
}

func newExportCommand() *cobra.Command {
	return parent(&cobra.Command{
		Use:   "export",
		Short: "Print every job or every event as JSON, one object per line",
		Long: `Print every job or every event as JSON, one object per line, from one snapshot of the database. Concurrent changes are not
included and are not blocked.`,
		Example: "  trapeze export jobs > jobs.jsonl\n  trapeze export events | jq -c 'select(.event == \"job.recovered\")'",
	}, exportCommand("jobs", "Every job, oldest first"), exportCommand("events", "Every event, grouped by job, in order"))
}

func exportCommand(what, short string) *cobra.Command {
	return &cobra.Command{
		Use:   what,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error { return at.Copy(c.Context(), c.OutOrStdout(), "/admin/export/"+what) })
		},
	}
}
