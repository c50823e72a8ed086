package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newKillCommand() *cobra.Command {
	m := manyOrOne{did: "cancelled", one: ends((*server).Cancel), many: (*server).CancelMany}
	c := &cobra.Command{
		Use:   "kill [ID]",
		Short: "Cancel a job, or all of a filter: a running one by telling its handler",
		Long: `Cancel a job. One that waits ends at once. A running one is told by the end of its context, on whichever pod, and ends
cancelled whatever its handler then returns. A handler that does not listen: trapeze stop.

With a filter instead of an id all jobs are cancelled that it selects and that have not ended, at most 10,000 at a time.
Look first with --dry-run.

Exit code 1 when there is no such job, or when it has ended already.`,
		Example: "  trapeze kill 4711\n  trapeze kill --kind csv_ingest --state pending --dry-run",
		Args:    cobra.MaximumNArgs(1),
		RunE:    m.run,
	}
	m.flags(c)
	return c
}

func newStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop ID",
		Short: "End a job at once, whatever its handler does",
		Long: `End a job at once. Its handler is told too, but whatever it still returns or writes with its lease is refused.

Exit code 1 when there is no such job, or when it has ended already.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(ends((*server).Stop)),
	}
}

// ends makes what ends one job.
func ends(end func(*server, context.Context, int64) (job.State, error)) func(*cobra.Command, *server, int64) error {
	return func(c *cobra.Command, at *server, id int64) error {
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
	}
}
