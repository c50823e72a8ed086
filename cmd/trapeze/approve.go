package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newApproveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approve ID",
		Short: "Let a job go that awaits approval",
		Long: `Let a job go that awaits approval: it is due at once, or when its own delay is over. Which ones wait:
trapeze jobs --state awaiting_approval. To refuse one: trapeze kill.

Exit code 1 when there is no such job, or when it does not await approval: it was approved before, say, or nobody approved
it in time.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *server, id int64) error {
			if err := at.Approve(c.Context(), id); err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": job.Pending})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "job %d is approved\n", id)
			return err
		}),
	}
}
