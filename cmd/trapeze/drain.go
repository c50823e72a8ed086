package main

import (
	"context"
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
		return usage("name a lane, or a pod with --pod")
	}
	return nil
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
			return untilQuiet(c, t.String()+" is drained", func(ctx context.Context, at *server) (job.Quiet, error) {
				if t.pod != "" {
					return at.DrainPod(ctx, t.pod, wait)
				}
				return at.DrainLane(ctx, t.lane, wait)
			})
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
			return opens(c, t.String()+" is resumed", func(ctx context.Context, at *server) (bool, error) {
				if t.pod != "" {
					return at.ResumePod(ctx, t.pod)
				}
				return at.ResumeLane(ctx, t.lane)
			})
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
			return untilQuiet(c, "frozen", func(ctx context.Context, at *server) (job.Quiet, error) { return at.Freeze(ctx, wait) })
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait so long until nothing runs")
	return c
}

func newThawCommand() *cobra.Command {
	return gateCommand("thaw", "End a freeze", "Lanes and pods that were drained stay drained, a paused gate stays paused.", "thawed",
		func(ctx context.Context, at *server) (bool, error) { return at.Thaw(ctx) })
}

func newPauseCommand() *cobra.Command {
	return gateCommand("pause", "Start nothing anywhere, until trapeze unpause",
		"On every pod, and after every restart. What runs goes on to its end. For maintenance, with a wait: trapeze freeze.", "paused",
		func(ctx context.Context, at *server) (bool, error) { return at.Pause(ctx) })
}

func newUnpauseCommand() *cobra.Command {
	return gateCommand("unpause", "Start jobs again after trapeze pause", "What is frozen stays frozen, and what is drained stays drained.", "unpaused",
		func(ctx context.Context, at *server) (bool, error) { return at.Unpause(ctx) })
}

func gateCommand(use, short, long, done string, do func(context.Context, *server) (bool, error)) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return opens(c, done, do) },
	}
	return c
}

// opens runs a command that has nothing to wait for, and prints what is so now.
func opens(c *cobra.Command, now string, do func(context.Context, *server) (bool, error)) error {
	at, err := reach(c)
	if err != nil {
		return err
	}
	defer at.Close()
	news, err := do(c.Context(), at)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return printJSON(c, map[string]any{"changed": news})
	}
	if !news {
		now += ", as before"
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), printable(now))
	return err
}

// untilQuiet runs a command that lets work end, and prints what still runs. Waiting in vain is exit code 1.
func untilQuiet(c *cobra.Command, now string, do func(context.Context, *server) (job.Quiet, error)) error {
	at, err := reach(c)
	if err != nil {
		return err
	}
	defer at.Close()
	quiet, err := do(c.Context(), at)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		err = printJSON(c, quiet)
	} else {
		if !quiet.Changed {
			now += ", as before"
		}
		still := "nothing runs there"
		if quiet.Running > 0 {
			still = fmt.Sprintf("%d still running", quiet.Running)
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s; %s\n", printable(now), still)
	}
	if err == nil && quiet.TimedOut {
		err = refused("waited in vain: %d still running, nothing was killed; look with trapeze ps", quiet.Running)
	}
	return err
}
