package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func newCompleteCommand() *cobra.Command {
	var p completion
	var result string
	c := &cobra.Command{
		Use:   "complete ID",
		Short: "End a deferred job, or one part of it",
		Long: `End one part of a job that waits to be completed from outside, with the token that its handler handed out. When it was the last part,
the job ends and what follows it starts. The same part a second time changes nothing. Through a
server, its own token is that of TRAPEZE_TOKEN.`,
		Example: "  trapeze complete 4711 --token K7… --result '{\"rows\":12}'\n  trapeze complete 4711 --token K7… --part page-3 --error \"no disk\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if p.Token == "" {
				return usage("--token: say the token that the job's handler handed out")
			}
			value, err := jsonOf(c, "result", result)
			if err != nil {
				return err
			}
			p.Result, _ = value.(json.RawMessage)
			return onOne(func(c *cobra.Command, at *server, id int64) error {
				if err := at.Complete(c.Context(), id, p); err != nil {
					return err
				}
				j, err := at.Job(c.Context(), id)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return printJSON(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": j.State, "progress": j.Progress})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "job %d is %s %s\n", id, j.State, printable(progressOf(j.Progress)))
				return err
			})(c, words)
		},
	}
	f := c.Flags()
	f.StringVar(&p.Token, "token", "", "the token that the job's handler handed out")
	f.StringVar(&p.Part, "part", "", "the name of the part, where there are several")
	f.StringVar(&result, "result", "", "its result, as JSON, @file, or - for standard input")
	f.StringVar(&p.Error, "error", "", "why it failed; empty: it did not")
	return c
}
