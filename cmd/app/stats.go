package app

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/failures"
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
	return watched(c, func(ctx context.Context, c *cobra.Command, at *cli.Client) error {
		found, err := cli.Get[job.Stats](ctx, at, "/stats", cli.QueryOf("window", window, "by", by, "lane", lane, "kind", kind))
		if err != nil {
			return err
		}
		return cli.Show(c, found, func() error { return printStats(c, found, by) })
	})
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

func newKindsCommand() *cobra.Command {
	var window, order string
	c := &cobra.Command{
		Use:   "kinds",
		Short: "List kinds with their run and wait times, open jobs, pods and limits",
		Long: `List the kinds that pods handle, that have open jobs, or whose jobs ended in a period. The slowest kind comes first: the one with the
highest 95th percentile of run times. Each pod adds its numbers once a minute.`,
		Example: "  trapeze kinds\n  trapeze kinds --window 24h --order wait_p95",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				kinds := cli.ListAll[job.KindUse](c.Context(), at, "/kinds", "kinds", cli.QueryOf("window", window, "order", order))
				return cli.List(c, "KIND FINISHED FAILED RUN-P50 RUN-P95 WAIT-P50 WAIT-P95 RUNNING WAITING LANE PODS LIMITS", kinds, func(k job.KindUse) []string {
					e := k.Ended
					return []string{k.Kind, strconv.FormatInt(e.Finished, 10), strconv.FormatInt(e.Failed, 10), timing(e.RunP50), timing(e.RunP95), timing(e.WaitP50),
						timing(e.WaitP95), strconv.Itoa(k.Running), strconv.Itoa(k.Waiting), k.Lane, kindPods(k), kindLimits(k)}
				})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&window, "window", "1h", "period: 1h, 24h, 7d or 30d")
	f.StringVar(&order, "order", "run_p95", "largest value first: run_p95, run_p50, wait_p95, wait_p50, finished, failed, running or waiting; or kind")
	return c
}

// kindPods describes the pods that handle a kind, by version.
func kindPods(k job.KindUse) string {
	var list []string
	for _, h := range k.Handlers {
		list = append(list, strings.TrimSpace(text.Count(len(h.Pods), "pod", "pods")+" "+h.Version))
	}
	return cmp.Or(strings.Join(list, ", "), "none")
}

// kindLimits lists a kind's limits without duplicates.
func kindLimits(k job.KindUse) string {
	var list []string
	for _, h := range k.Handlers {
		if h.Limits != nil && !slices.Contains(list, h.Limits.String()) {
			list = append(list, h.Limits.String())
		}
	}
	return strings.Join(list, "; ")
}

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
