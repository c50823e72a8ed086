package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

func newKillCommand() *cobra.Command {
	return endCommand("kill ID", "Cancel a job: a running one by telling its handler",
		`Cancel a job. One that waits ends at once. A running one is told by the end of its context, on whichever pod, and ends
cancelled whatever its handler then returns. A handler that does not listen: trapeze stop.`,
		backend.Cancel)
}

func newStopCommand() *cobra.Command {
	return endCommand("stop ID", "End a job at once, whatever its handler does",
		`End a job at once. Its handler is told too, but whatever it still returns or writes with its lease is refused.`,
		backend.Stop)
}

// endCommand makes a command that ends one job.
func endCommand(use, short, long string, end func(backend, context.Context, int64) (job.State, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long + "\n\nExit code 1 when there is no such job, or when it has ended already.",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := api.ParseID(args[0])
			if err != nil {
				return usage("%w", err)
			}
			at, err := reach(c)
			if err != nil {
				return err
			}
			defer at.Close()
			state, err := end(at, c.Context(), id)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": state})
			}
			if state == job.Running {
				_, err = fmt.Fprintf(c.OutOrStdout(), "job %d is being cancelled: its handler is told\n", id)
			} else {
				_, err = fmt.Fprintf(c.OutOrStdout(), "job %d is %s\n", id, state)
			}
			return err
		},
	}
}
