package app

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
)

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
