package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newPodsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "pods",
		Short:   "List the pods and the remote workers that run jobs",
		Example: "  trapeze pods\n  trapeze pods --all    # also those that left or died of late",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := reach(c)
			if err != nil {
				return err
			}
			defer from.Close()
			pods, err := from.Pods(c.Context(), all)
			if err != nil {
				return err
			}
			var rows [][]string
			now := time.Now()
			for _, p := range pods {
				if wantsJSON(c) {
					if err := printJSON(c, p); err != nil {
						return err
					}
					continue
				}
				rows = append(rows, []string{
					p.Name, p.Boot, p.Version, strconv.Itoa(p.Running), strconv.Itoa(p.Slots), since(&p.StartedAt, now),
					podState(p, now), remoteOf(p), short(strings.Join(p.Kinds, ","), 60),
				})
			}
			if wantsJSON(c) {
				return nil
			}
			return printTable(c, "NAME BOOT VERSION RUNNING SLOTS UP STATE REMOTE KINDS", rows)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also those that are closed")
	return c
}

// remoteOf says of a remote worker who may speak for it, and how often it has opened its stream; empty: a pod.
func remoteOf(p job.Pod) string {
	if !p.Remote || p.Owner == nil || p.Stream == nil {
		return ""
	}
	return fmt.Sprintf("%s, stream %d", *p.Owner, *p.Stream)
}

// podState says how a pod is, as far as its lease tells.
func podState(p job.Pod, now time.Time) string {
	switch {
	case p.Closed != nil:
		return *p.Closed
	case p.LeaseUntil.Before(now):
		return "lapsing"
	case p.Drained && !p.Draining:
		return "drained"
	case p.Draining:
		return "draining"
	}
	return "alive"
}
