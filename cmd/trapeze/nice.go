package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newNiceCommand() *cobra.Command {
	var chain bool
	c := &cobra.Command{
		Use:   "nice ID PRIORITY",
		Short: "Give a job that waits another priority",
		Long: `Give a job that waits another priority, -100 to 100: higher first, and among its new equals it comes when it became due. A step that
follows it and names no priority takes its; --chain gives it to those that name one, too. A negative one is written after --.

Exit code 1 when there is no such job, when it runs, or when it has ended.`,
		Example: "  trapeze nice 4711 50\n  trapeze nice --chain 4711 -- -20",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, words []string) error {
			priority, err := strconv.Atoi(words[1])
			if err != nil || priority < job.MinPriority || priority > job.MaxPriority {
				return usage("priority %q: want %d to %d", words[1], job.MinPriority, job.MaxPriority)
			}
			return onOne(func(c *cobra.Command, at *server, id int64) error {
				if err := at.Nice(c.Context(), id, priority, chain); err != nil {
					return err
				}
				if wantsJSON(c) {
					return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "priority": priority})
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "job %d has priority %d\n", id, priority)
				return err
			})(c, words)
		},
	}
	c.Flags().BoolVar(&chain, "chain", false, "also for the steps that are planned after it")
	return c
}
