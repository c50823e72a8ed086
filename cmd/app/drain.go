package app

import (
	"github.com/trapeze-run/trapeze/internal/cli/client"
	"github.com/trapeze-run/trapeze/internal/cli/show"

	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// target is the lane or the pod that a command is about.
type target struct {
	pod  string
	lane string
}

// read takes the lane from the arguments; either that or a pod is wanted.
func (t *target) read(args []string) error {
	if len(args) == 1 {
		t.lane = args[0]
	}
	if (t.pod == "") == (t.lane == "") {
		return exit.Usage("name a lane, or a pod with --pod")
	}
	return nil
}

// path is that of a command for the target.
func (t *target) path(command string) string {
	if t.pod != "" {
		return client.Path("/admin/workers/pods/:id/", t.pod) + command
	}
	return client.Path("/admin/workers/lanes/:name/", t.lane) + command
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
		Short: "Start nothing in a lane, or on a pod, until it is resumed",
		Long: `Start nothing in a lane, or on a pod, until trapeze resume: what runs goes on to its end, and next steps of chains wait, or go to
another pod. A drained pod is alive and not ready; a process that comes back under its name is drained too.

--wait waits until nothing runs there. When that takes longer, the exit code is 1; nothing is killed, and it stays drained.`,
		Example: `  trapeze drain reports --wait 5m
  trapeze drain --pod web-3          # by its name or its boot id: trapeze pods`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return untilQuiet(c, t.String()+" is drained", t.path("drain"), wait)
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "a pod, by its name or boot id")
	c.Flags().DurationVar(&wait, "wait", 0, "wait so long until nothing runs there")
	return c
}

func newResumeCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:     "resume [LANE]",
		Short:   "Start jobs in a lane, or on a pod, again",
		Example: "  trapeze resume reports\n  trapeze resume --pod web-3",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return opens(c, t.String()+" is resumed", t.path("resume"))
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "a pod, by its name or boot id")
	return c
}

func newFreezeCommand() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "freeze",
		Short: "Start nothing anywhere, for maintenance, until trapeze thaw",
		Long: `Start nothing anywhere until trapeze thaw, on every pod and after every restart. What runs goes on to its end.

--wait waits until nothing runs. When that takes longer, the exit code is 1; nothing is killed, and it stays frozen.`,
		Example: "  trapeze freeze --wait 10m && pg_upgrade … && trapeze thaw",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return untilQuiet(c, "frozen", "/admin/workers/freeze", wait)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait so long until nothing runs")
	return c
}

func newThawCommand() *cobra.Command {
	return gateCommand("thaw", "End a freeze", "Lanes and pods that were drained stay drained, a paused gate stays paused.", "thawed")
}

func newPauseCommand() *cobra.Command {
	return gateCommand("pause", "Start nothing anywhere, until trapeze unpause",
		"On every pod, and after every restart. What runs goes on to its end. For maintenance, with a wait: trapeze freeze.", "paused")
}

func newUnpauseCommand() *cobra.Command {
	return gateCommand("unpause", "Start jobs again after trapeze pause", "What is frozen stays frozen, and what is drained stays drained.", "unpaused")
}

func gateCommand(use, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return opens(c, done, "/admin/workers/"+use) },
	}
}

// opens runs a command that has nothing to wait for, and prints what is so now.
func opens(c *cobra.Command, now, path string) error {
	return onClient(c, func(at *client.Client) error { return opensAt(c, at, now, path) })
}

func opensAt(c *cobra.Command, at *client.Client, now, path string) error {
	news, err := client.Post[struct {
		Changed bool `json:"changed"`
	}](c.Context(), at, path, nil)
	if err != nil {
		return err
	}
	if !news.Changed {
		now += ", as before"
	}
	return show.Done(c, news, "%s", now)
}

// waitAtOnce is the time limit of one waiting request: less than a server may take to begin its answer.
const waitAtOnce = 20 * time.Second

// untilQuiet runs a command that lets work end, asks again until nothing runs there or the wait is over, and prints what still runs. Waiting
// in vain is exit code 1.
func untilQuiet(c *cobra.Command, now, path string, wait time.Duration) error {
	return onClient(c, func(at *client.Client) error {
		changed := false
		for until := time.Now().Add(wait); ; {
			step := max(min(time.Until(until), waitAtOnce), 0)
			quiet, err := client.Post[job.Quiet](c.Context(), at, path, map[string]string{"wait": step.String()})
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
		now += ", as before"
	}
	still := "nothing runs there"
	if quiet.Running > 0 {
		still = fmt.Sprintf("%d still running", quiet.Running)
	}
	err := show.Done(c, quiet, "%s; %s", now, still)
	if err == nil && quiet.TimedOut {
		err = exit.Refused("waited in vain: %d still running, nothing was killed; look with trapeze ps", quiet.Running)
	}
	return err
}
