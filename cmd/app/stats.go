package app

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newStatsCommand() *cobra.Command {
	var window, by, lane, kind string
	c := &cobra.Command{
		Use:   "stats",
		Short: "Count the jobs that ended in a period, with wait and run times",
		Long: `Count the jobs that ended in the last 1h, 24h, 7d or 30d, by kind or lane. WAIT is the time from due to claimed, RUN the run time of the
handler, both of the last attempt; half of the jobs are below P50, 95 % below P95. TREND shows the finished jobs over the
period, oldest first.

Pods store their numbers once a minute. A pod that crashes loses those of its last minute. Times are approximate: at most 41 %
too long or too short.`,
		Example: `  trapeze stats
  trapeze stats --window 24h --by lane
  trapeze stats --window 7d --kind report --json | jq .total`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&window, "window", "1h", "period: 1h, 24h, 7d or 30d")
	c.Flags().StringVar(&by, "by", "kind", "one line per kind or lane")
	c.Flags().StringVar(&lane, "lane", "", "only jobs of this lane")
	c.Flags().StringVar(&kind, "kind", "", "only jobs of this kind")
	every := cli.WatchFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return onClient(c, func(at *cli.Client) error {
			return cli.Watch(c, *every, func(ctx context.Context) error {
				found, err := cli.Get[job.Stats](ctx, at, "/stats", cli.QueryOf("window", window, "by", by, "lane", lane, "kind", kind))
				if err != nil {
					return err
				}
				if cli.WantsJSON(c) {
					return cli.JSON(c, found)
				}
				return printStats(c, found, by)
			})
		})
	}
	return c
}

func printStats(c *cobra.Command, s job.Stats, by string) error {
	out := c.OutOrStdout()
	if s.ReadSince != nil {
		fmt.Fprintf(out, "Incomplete: the numbers cover jobs that ended since %s.\n\n", text.Clock(s.ReadSince))
	}
	var rows [][]string
	for _, of := range append(s.Of, s.Total) {
		if of.Name == "" {
			of.Name = "all"
		}
		rows = append(rows, []string{
			of.Name, strconv.FormatInt(of.Finished, 10), strconv.FormatInt(of.Failed, 10), strconv.FormatInt(of.Cancelled, 10),
			timing(of.WaitP50), timing(of.WaitP95), timing(of.RunP50), timing(of.RunP95), trend(of.Intervals),
		})
	}
	return cli.Table(c, strings.ToUpper(by)+" FINISHED FAILED CANCELLED WAIT-P50 WAIT-P95 RUN-P50 RUN-P95 TREND", rows)
}

// timing formats a wait or run time, which may be well below a millisecond.
func timing(d *job.Seconds) string {
	switch {
	case d == nil:
		return ""
	case d.Duration() < 10*time.Millisecond:
		return d.Duration().Round(10 * time.Microsecond).String()
	}
	return text.Round(d.Duration()).String()
}

// trendWidth is the maximum width of a trend, in characters.
const trendWidth = 31

// trend draws the number of finished jobs per interval as a line of bars. A dot means no jobs. If there are too many intervals, adjacent
// ones share a bar.
func trend(intervals []job.StatsInterval) string {
	each := (len(intervals) + trendWidth - 1) / trendWidth
	var bars []int64
	most := int64(0)
	for i, interval := range intervals {
		if i%each == 0 {
			bars = append(bars, 0)
		}
		last := len(bars) - 1
		bars[last] += interval.Finished
		most = max(most, bars[last])
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, n := range bars {
		if n == 0 {
			b.WriteRune('·')
		} else {
			b.WriteRune(levels[min(n*int64(len(levels))/most, int64(len(levels)-1))])
		}
	}
	return b.String()
}
