package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func newRetryCommand() *cobra.Command {
	var args string
	m := manyOrOne{did: "tried again", many: (*server).RetryMany}
	m.one = func(c *cobra.Command, at *server, id int64) error {
		other, err := jsonOf(c, "args", args)
		if err != nil {
			return err
		}
		again, err := at.Retry(c.Context(), id, other)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "retried": idTexts(again)})
		}
		text := "is pending again"
		if len(again) == 0 {
			text = fmt.Sprintf("waits: trapeze job %d says what for", id)
		} else if len(again) != 1 || again[0] != id {
			text = "waits again for " + countOf(len(again), "job", "jobs")
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "job %d %s\n", id, text)
		return err
	}
	c := &cobra.Command{
		Use:   "retry [ID]",
		Short: "Run a failed or cancelled job again, or all of a filter",
		Long: `Run a job again that failed or was cancelled, if need be with other arguments. Its attempts are counted anew, its history goes on.
Of a job that fanned out, the branches are tried again that had not succeeded. One that needs approval awaits it again if it never
ran, or is to run with other arguments. A whole pipeline: trapeze pipeline retry.

With a filter instead of an id all jobs are tried again that it selects and that failed, at most 10,000 at a time; cancelled
ones only with --state cancelled. Look first with --dry-run.

Exit code 1 when there is no such job, when it has neither failed nor been cancelled, or when another job holds its unique key.`,
		Example: "  trapeze retry 4711\n  trapeze retry 4711 --args '{\"year\":2024}'\n  trapeze retry --kind csv_ingest --since 2h --dry-run",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 && c.Flags().Changed("args") {
				return usage("--args is for one job, by its id")
			}
			return m.run(c, words)
		},
	}
	m.flags(c)
	c.Flags().StringVar(&args, "args", "", "other arguments, as JSON, @file, or - for standard input")
	return c
}
