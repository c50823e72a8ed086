package app

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// target is the lane or pod on which a command acts.
type target struct {
	pod  string
	lane string
}

// read sets the lane from the arguments. It returns an error unless exactly one of lane and pod is given.
func (t *target) read(args []string) error {
	if len(args) == 1 {
		t.lane = args[0]
	}
	if (t.pod == "") == (t.lane == "") {
		return cli.Usage("want a lane, or a pod with --pod")
	}
	return nil
}

// path returns the API path of a command on the target.
func (t *target) path(command string) string {
	if t.pod != "" {
		return cli.Path("/admin/workers/pods/:id/", t.pod) + command
	}
	return cli.Path("/admin/workers/lanes/:name/", t.lane) + command
}

func (t *target) String() string {
	if t.pod != "" {
		return "pod " + t.pod
	}
	return "lane " + t.lane
}

func newDrainCommand() *cobra.Command {
	var t target
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain [LANE]",
		Short: "Stop starting jobs in a lane or on a pod, until trapeze resume",
		Long: `Stop starting jobs in a lane or on a pod, until trapeze resume. Running jobs continue; next steps of chains wait, or run on another
pod. A drained pod is alive but not ready. It stays drained when its process restarts under the same name.

--wait waits until no job runs there. After the timeout the exit code is 1, no job is stopped, and the lane or pod stays drained.`,
		Example: `  trapeze drain reports --wait 5m
  trapeze drain --pod web-3 --reason "disk is full"   # by name or id; trapeze pods shows the reason`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return awaitIdle(c, t.String()+" drained", t.path("drain"), wait)
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "name or id of a pod")
	c.Flags().DurationVar(&wait, "wait", 0, "maximum time to wait until no job runs there")
	return c
}

func newResumeCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:     "resume [LANE]",
		Short:   "Resume a drained lane or pod",
		Example: "  trapeze resume reports\n  trapeze resume --pod web-3",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return changeState(c, t.String()+" resumed", t.path("resume"))
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "name or id of a pod")
	return c
}

func newFreezeCommand() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "freeze",
		Short: "Stop starting jobs on all pods for maintenance, until trapeze thaw",
		Long: `Stop starting jobs on all pods, even after a restart, until trapeze thaw. Running jobs continue.

--wait waits until no job runs. After the timeout the exit code is 1, no job is stopped, and the queue stays frozen.`,
		Example: "  trapeze freeze --wait 10m && pg_upgrade … && trapeze thaw",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return awaitIdle(c, "frozen", "/admin/workers/freeze", wait)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "maximum time to wait until no job runs")
	return c
}

func newThawCommand() *cobra.Command {
	return queueCommand("thaw", "End a freeze", "Drained lanes and pods stay drained, and a paused queue stays paused.", "thawed")
}

func newPauseCommand() *cobra.Command {
	return queueCommand("pause", "Stop starting jobs on all pods, until trapeze unpause",
		"The pause outlasts restarts. Running jobs continue. For maintenance, and to wait for running jobs, use trapeze freeze.", "paused")
}

func newUnpauseCommand() *cobra.Command {
	return queueCommand("unpause", "End a pause", "A frozen queue stays frozen, and drained lanes and pods stay drained.", "unpaused")
}

func queueCommand(use, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return changeState(c, done, "/admin/workers/"+use) },
	}
}

// changeState sends a command that does not wait, and prints the new state, preceded by "already" if nothing changed.
func changeState(c *cobra.Command, now, path string) error {
	return onClient(c, func(at *cli.Client) error { return changeAt(c, at, now, path) })
}

// already inserts "already" before the state, as in "lane reports already drained".
func already(now string) string {
	at := strings.LastIndex(now, " ") + 1
	return now[:at] + "already " + now[at:]
}

func changeAt(c *cobra.Command, at *cli.Client, now, path string) error {
	news, err := cli.Post[struct {
		Changed bool `json:"changed"`
	}](c.Context(), at, path, nil)
	if err != nil {
		return err
	}
	if !news.Changed {
		now = already(now)
	}
	return cli.Done(c, news, "%s", now)
}

// waitAtOnce is the timeout of a single request. It is shorter than the time within which a server must begin its response.
const waitAtOnce = 20 * time.Second

// awaitIdle runs a command that drains or freezes. It repeats the request until no affected job is running or the wait is over, and prints
// how many jobs are still running. If any are, the exit code is 1.
func awaitIdle(c *cobra.Command, now, path string, wait time.Duration) error {
	return onClient(c, func(at *cli.Client) error {
		changed := false
		for until := time.Now().Add(wait); ; {
			step := max(min(time.Until(until), waitAtOnce), 0)
			quiet, err := cli.Post[job.Quiet](c.Context(), at, path, map[string]string{"wait": step.String()})
			if err != nil {
				return err
			}
			changed = changed || quiet.Changed
			quiet.Changed = changed
			if quiet.Quiet || !quiet.TimedOut || time.Until(until) <= 0 {
				return printQuiet(c, now, quiet)
			}
		}
	})
}

func printQuiet(c *cobra.Command, now string, quiet job.Quiet) error {
	if !quiet.Changed {
		now = already(now)
	}
	still := "no running jobs"
	if quiet.Running > 0 {
		still = text.Count(quiet.Running, "job", "jobs") + " still running"
	}
	err := cli.Done(c, quiet, "%s; %s", now, still)
	if err == nil && quiet.TimedOut {
		err = cli.Refused("timed out with %s; none was stopped, see trapeze ps", still)
	}
	return err
}
