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

func newPsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "ps",
		Short: "List running jobs by pod, and the lanes with their waiting jobs",
		Long: `List running jobs with pod, start time and progress, then the lanes: slots used, limit, waiting jobs, age of the oldest due job, and
whether the lane is open. All values are from one snapshot. A paused or frozen queue is shown first. Jobs on remote
workers are marked.

--stack prints the stack of the goroutine that is running a job's handler, on any pod or remote worker, and nothing else.
The exit code is 1 if the job is not running, or if its pod or worker does not answer.`,
		Example: `  trapeze ps
  trapeze ps --watch=1s
  trapeze ps --stack 4711
  trapeze ps --json | jq '.running[].job'`,
		Args: cobra.NoArgs,
	}
	watched(c, func(ctx context.Context, c *cobra.Command, at *cli.Client) error {
		now, err := cli.Get[job.Fleet](ctx, at, "/admin/workers/status", nil)
		if err != nil {
			return err
		}
		return cli.Show(c, now, func() error { return printPs(c, now, time.Now()) })
	})
	var stack string
	c.Flags().StringVar(&stack, "stack", "", "print the stack of the handler of this running job")
	status := c.RunE
	c.RunE = func(c *cobra.Command, words []string) error {
		if stack != "" {
			return onOne(printStack)(c, []string{stack})
		}
		return status(c, words)
	}
	return c
}

// printStack prints the stack of a running job's handler.
func printStack(c *cobra.Command, at *cli.Client, id int64) error {
	got, err := cli.Post[job.Stack](c.Context(), at, cli.Path("/jobs/:id/stack", id), nil)
	if err != nil {
		return err
	}
	return cli.Show(c, got, func() error {
		_, err := fmt.Fprintf(c.OutOrStdout(), "job %d, fence %d, on pod %s, %s\n\n%s\n", got.Job, got.Fence, text.Printable(got.Pod), text.Clock(&got.At), got.Stack)
		return err
	})
}

func printPs(c *cobra.Command, s job.Fleet, now time.Time) error {
	out := c.OutOrStdout()
	if closed := closedQueue(s.Queue); closed != "" {
		fmt.Fprintf(out, "%s\n\n", cli.InkFor(out).Colour(cli.Red, cli.Named(c, closed)))
	}
	remote := map[string]bool{}
	for _, p := range s.Pods {
		remote[p.PodID] = p.Remote
	}
	var rows [][]string
	for _, j := range s.Running {
		rows = append(rows, []string{
			strconv.FormatInt(j.Job, 10), j.Kind, j.Lane, text.Short(j.Subject, 30), text.Short(j.Key, 20), strconv.Itoa(j.Priority), podWith(j.Pod, remote[j.PodID]),
			text.Ago(&j.Since, now), strconv.Itoa(j.Attempt), text.Short(remarkOfSlot(j), 60),
		})
	}
	if err := cli.Table(c, "JOB KIND LANE SUBJECT KEY PRI POD SINCE TRY PROGRESS", rows); err != nil {
		return err
	}
	fmt.Fprintln(out)
	rows = nil
	for _, l := range s.Lanes {
		rows = append(rows, []string{l.Name, strconv.Itoa(l.Running), limitOf(l), strconv.Itoa(l.Waiting), text.Ago(l.Oldest, now), laneState(l)})
	}
	return cli.Table(c, "LANE USED LIMIT WAITING OLDEST STATE", rows)
}

// closedQueue explains why no job starts in any lane, and names the commands that reopen the queue. It returns an empty string if the queue
// is open.
func closedQueue(g job.QueueState) string {
	switch {
	case g.Paused && g.Frozen:
		return "No job starts: the queue is paused" + closedBy(g.Pause) + " and frozen" + closedBy(g.Freeze) + ". To open it, run trapeze resume and trapeze unfreeze."
	case g.Paused:
		return "No job starts: the queue is paused" + closedBy(g.Pause) + ". To open it, run trapeze resume."
	case g.Frozen:
		return "No job starts: the queue is frozen" + closedBy(g.Freeze) + ". To open it, run trapeze unfreeze."
	}
	return ""
}

// closedBy describes who closed the queue or a lane, when and why. It returns an empty string if c is nil.
func closedBy(c *job.Closure) string {
	if c == nil {
		return ""
	}
	line := " since " + text.Clock(&c.Since) + " by " + text.Printable(c.Actor)
	if c.Reason != "" {
		line += ": " + text.Short(c.Reason, 60)
	}
	return line
}

// podWith returns a pod's name, marked if the pod is a remote worker.
func podWith(name string, remote bool) string {
	if remote {
		return name + " (remote)"
	}
	return name
}

// remarkOfSlot returns the most important information about a claimed job besides its slot.
func remarkOfSlot(j job.Slot) string {
	if j.Fetched && !j.CancelRequested {
		return "fetched"
	}
	return remark(job.JobRow{State: job.Running, CancelRequested: j.CancelRequested, Progress: j.Progress})
}

func newPodsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "pods",
		Short:   "List pods and remote workers",
		Example: "  trapeze pods\n  trapeze pods --all    # include pods that left or died recently",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				now := time.Now()
				return cli.List(c, "NAME BOOT VERSION RUNNING SLOTS UP STATE REMOTE KINDS", readPods(c.Context(), at, all), func(p job.Pod) []string {
					return []string{
						p.Name, p.PodID, p.Version, strconv.Itoa(p.Running), strconv.Itoa(p.Slots), text.Ago(&p.StartedAt, now),
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
