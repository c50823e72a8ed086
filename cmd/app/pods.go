package app

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newPodsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "pods",
		Short:   "List pods and remote workers",
		Example: "  trapeze pods\n  trapeze pods --all    # include pods that left or died recently",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				pods, err := readPods(c.Context(), at, all)
				if err != nil {
					return err
				}
				now := time.Now()
				return cli.List(c, "NAME BOOT VERSION RUNNING SLOTS UP STATE REMOTE KINDS", cli.Rows(pods), func(p job.Pod) []string {
					return []string{
						p.Name, p.Boot, p.Version, strconv.Itoa(p.Running), strconv.Itoa(p.Slots), text.Ago(&p.StartedAt, now),
						podState(p, now), remoteOf(p), text.Short(strings.Join(p.Kinds, ","), 60),
					}
				})
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "include pods that left or died recently")
	return c
}

// remoteOf describes a remote worker by its owner and stream number. It returns an empty string for a pod.
func remoteOf(p job.Pod) string {
	if !p.Remote || p.Owner == nil || p.Stream == nil {
		return ""
	}
	return fmt.Sprintf("%s, stream %d", *p.Owner, *p.Stream)
}

// podState describes a pod's state, derived from its row and its lease.
func podState(p job.Pod, now time.Time) string {
	switch {
	case p.Closed != nil:
		return *p.Closed
	case p.LeaseUntil.Before(now):
		return "lapsing"
	case p.Drained && !p.Draining:
		return "drained" + closedBy(p.Drain)
	case p.Draining:
		return "draining"
	}
	return "alive"
}
