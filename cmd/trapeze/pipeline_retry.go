package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func newPipelineRetryCommand() *cobra.Command {
	var args string
	c := &cobra.Command{
		Use:   "retry ID",
		Short: "Go on with a pipeline from the step that failed",
		Long: `Go on with a pipeline that failed or was cancelled, from the step that did, if need be with other arguments. What had succeeded is not
done again. Of a step that fanned out, the branches are tried again that had not succeeded.

Exit code 1 when there is no such pipeline, or when it has neither failed nor been cancelled.`,
		Example: "  trapeze pipeline retry 4711\n  trapeze pipeline retry 4711 --args '{\"year\":2024}'",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			other, err := jsonOf(c, "args", args)
			if err != nil {
				return err
			}
			return onOne(func(c *cobra.Command, at *server, id int64) error {
				again, err := at.RetryPipeline(c.Context(), id, other)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return printJSON(c, map[string]any{"pipeline": strconv.FormatInt(id, 10), "retried": idTexts(again)})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "pipeline %d goes on with %s\n", id, countOf(len(again), "job", "jobs"))
				return err
			})(c, words)
		},
	}
	c.Flags().StringVar(&args, "args", "", "other arguments of the step, as JSON, @file, or - for standard input")
	return c
}
