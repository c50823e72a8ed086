package app

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// mostNext is the maximum number of occurrences that `cron next` prints.
const mostNext = 1000

func newCronNextCommand() *cobra.Command {
	var zone, from string
	var n int
	c := &cobra.Command{
		Use:   "next EXPRESSION",
		Short: "Explain an expression and list its next occurrences",
		Long: `Explain an expression in words and list its next occurrences, in its zone and in UTC. Needs neither a database nor a server: try an
expression here before you set it. For the syntax of expressions, see trapeze cron set --help.`,
		Example: `  trapeze cron next "30 2 * * *" --zone Europe/Zurich
  trapeze cron next "0 9 * * mon-fri" -n 10
  trapeze cron next "30 2 * * *" --zone Europe/Zurich --from 2026-03-28T12:00:00Z    # across the change to summer time`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if n < 1 || n > mostNext {
				return cli.Usage("-n %d: want 1 to %d", n, mostNext)
			}
			after := time.Now()
			if from != "" {
				at, err := time.Parse(time.RFC3339, from)
				if err != nil {
					return cli.Usage("--from %q: want a time such as 2026-03-28T12:00:00Z", from)
				}
				after = at
			}
			shown, err := runner.PreviewSchedule(args[0], zone, after, n)
			if err != nil {
				return err
			}
			return printPreview(c, shown)
		},
	}
	f := c.Flags()
	f.StringVar(&zone, "zone", job.DefaultSchedule().Zone, "time zone of the expression, by its IANA name")
	f.IntVarP(&n, "number", "n", 5, "number of occurrences")
	f.StringVar(&from, "from", "", "list occurrences after this time (default: now)")
	return c
}

func printPreview(c *cobra.Command, shown job.SchedulePreview) error {
	if cli.WantsJSON(c) {
		return cli.JSON(c, shown)
	}
	zone, err := time.LoadLocation(shown.Zone)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, at := range shown.NextFires {
		rows = append(rows, []string{at.In(zone).Format("Mon 2006-01-02 15:04:05 -07:00"), text.Clock(&at)})
	}
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%s\n\n", text.Printable(shown.Words)); err != nil {
		return err
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "no further occurrences")
		return err
	}
	return cli.Table(c, "LOCAL UTC", rows)
}
