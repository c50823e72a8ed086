package app

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

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
				found, err := cli.Get[struct {
					Kinds []job.KindUse `json:"kinds"`
				}](c.Context(), at, "/kinds", cli.QueryOf("window", window, "order", order))
				if err != nil {
					return err
				}
				return cli.List(c, "KIND FINISHED FAILED RUN-P50 RUN-P95 WAIT-P50 WAIT-P95 RUNNING WAITING LANE PODS LIMITS", cli.Rows(found.Kinds), func(k job.KindUse) []string {
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
