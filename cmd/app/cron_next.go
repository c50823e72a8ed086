package app

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/internal/cli/show"
	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// mostNext is how many fires cron next shows at most.
const mostNext = 1000

func newCronNextCommand() *cobra.Command {
	var zone, from string
	var n int
	c := &cobra.Command{
		Use:   "next EXPRESSION",
		Short: "Say in words what an expression means, and when it fires next",
		Long: `Say in words what an expression means, and when it fires next, in its zone and in UTC. It asks no database and no server: try
expressions here before you set them. See trapeze cron set --help for their form.`,
		Example: `  trapeze cron next "30 2 * * *" --zone Europe/Zurich
  trapeze cron next "0 9 * * mon-fri" -n 10
  trapeze cron next "30 2 * * *" --zone Europe/Zurich --from 2026-03-28T12:00:00Z    # over the change of the clocks`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if n < 1 || n > mostNext {
				return exit.Usage("-n %d: want 1 to %d", n, mostNext)
			}
			after := time.Now()
			if from != "" {
				at, err := time.Parse(time.RFC3339, from)
				if err != nil {
					return exit.Usage("--from %q: want a moment such as 2026-03-28T12:00:00Z", from)
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
	f.IntVarP(&n, "number", "n", 5, "so many fires")
	f.StringVar(&from, "from", "", "after this moment (default: now)")
	return c
}

func printPreview(c *cobra.Command, shown job.SchedulePreview) error {
	if show.WantsJSON(c) {
		return show.JSON(c, shown)
	}
	zone, err := time.LoadLocation(shown.Zone)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, at := range shown.NextFires {
		rows = append(rows, []string{at.In(zone).Format("Mon 2006-01-02 15:04:05 -07:00"), humanize.Clock(&at)})
	}
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%s\n\n", humanize.Printable(shown.Words)); err != nil {
		return err
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "It does not fire any more.")
		return err
	}
	return show.Table(c, "THERE UTC", rows)
}
