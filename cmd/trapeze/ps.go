package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// occupied is a slot in use: the job in it, and the pod by its name.
type occupied struct {
	job.Job
	PodName string `json:"pod_name"`
}

func newPsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "ps",
		Short: "Show what occupies which slot on which pod, and what waits in the lanes",
		Long: `Show what occupies which slot on which pod, since when and how far it is, and below it the lanes: slots used, limit, what
waits, how long the oldest of it has been due, and whether the lane is open.`,
		Example: `  trapeze ps
  trapeze ps --watch=1s
  trapeze ps --json | jq '.running[].id'`,
		Args: cobra.NoArgs,
	}
	every := watchFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		from, err := reach(c)
		if err != nil {
			return err
		}
		defer from.Close()
		return watching(c, *every, func(ctx context.Context) error { return showPs(ctx, c, from) })
	}
	return c
}

func showPs(ctx context.Context, c *cobra.Command, from backend) error {
	running, err := slotsInUse(ctx, from)
	if err != nil {
		return err
	}
	lanes, err := from.Lanes(ctx)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return printJSON(c, map[string]any{"running": running, "lanes": lanes})
	}
	return printPs(c, running, lanes, time.Now())
}

// slotsInUse lists all running jobs, newest first.
func slotsInUse(ctx context.Context, from backend) ([]occupied, error) {
	pods, err := from.Pods(ctx, true)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, p := range pods {
		names[p.Boot] = p.Name
	}
	list := []occupied{}
	for filter := (store.Filter{States: []job.State{job.Running}, Limit: 1000}); ; {
		page, err := from.Jobs(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, j := range page.Jobs {
			list = append(list, occupied{Job: j, PodName: names[text(j.Pod)]})
		}
		if filter.Cursor = page.Cursor; filter.Cursor == "" {
			return list, nil
		}
	}
}

func printPs(c *cobra.Command, running []occupied, lanes []store.LaneUse, now time.Time) error {
	var rows [][]string
	for _, j := range running {
		rows = append(rows, []string{
			strconv.FormatInt(j.ID, 10), j.Kind, j.Lane, short(j.Subject, 30), strconv.Itoa(j.Priority), j.PodName,
			since(j.StartedAt, now), strconv.Itoa(j.Attempt), short(remark(j.Job), 60),
		})
	}
	if err := printTable(c, "JOB KIND LANE SUBJECT PRI POD SINCE TRY PROGRESS", rows); err != nil {
		return err
	}
	fmt.Fprintln(c.OutOrStdout())
	rows = nil
	for _, l := range lanes {
		rows = append(rows, []string{l.Name, strconv.Itoa(l.Running), limitOf(l), strconv.Itoa(l.Waiting), since(l.Oldest, now), laneState(l)})
	}
	return printTable(c, "LANE USED LIMIT WAITING OLDEST STATE", rows)
}

// limitOf is how many jobs of a lane may run: on all pods together, on each.
func limitOf(l store.LaneUse) string {
	var limits []string
	if l.Slots != nil {
		limits = append(limits, strconv.Itoa(*l.Slots))
	}
	if l.SlotsPerPod != nil {
		limits = append(limits, strconv.Itoa(*l.SlotsPerPod)+" a pod")
	}
	return strings.Join(limits, ", ")
}
