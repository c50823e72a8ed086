package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/runner"
)

func newCompleteCommand() *cobra.Command {
	var token, part, result, failure string
	c := &cobra.Command{
		Use:   "complete ID",
		Short: "End a deferred job, or one part of it",
		Long: `End one part of a job that waits to be completed from outside, with the token that its handler handed out. When it was the last part,
the job ends and what follows it starts. The same part a second time changes nothing.`,
		Example: "  trapeze complete 4711 --token K7… --result '{\"rows\":12}'\n  trapeze complete 4711 --token K7… --part page-3 --error \"no disk\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if token == "" {
				return usage("--token: say the token that the job's handler handed out")
			}
			value, err := jsonOf(c, "result", result)
			if err != nil {
				return err
			}
			options := []runner.CompleteOption{runner.Part(part), runner.CompletedBy(operator())}
			if failure != "" {
				options = append(options, runner.PartFailed(errors.New(failure)))
			}
			return onOne(func(c *cobra.Command, db *client, id int64) error {
				if err := db.Complete(c.Context(), id, token, value, options...); err != nil {
					return err
				}
				db.wake(c.Context())
				j, err := db.Get(c.Context(), id)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": j.State, "progress": j.Progress})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "job %d is %s %s\n", id, j.State, progressOf(j.Progress))
				return err
			})(c, words)
		},
	}
	f := c.Flags()
	f.StringVar(&token, "token", "", "the token that the job's handler handed out")
	f.StringVar(&part, "part", "", "the name of the part, where there are several")
	f.StringVar(&result, "result", "", "its result, as JSON, @file, or - for standard input")
	f.StringVar(&failure, "error", "", "why it failed; empty: it did not")
	return c
}
