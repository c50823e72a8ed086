package main

import (
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
)

// onOne makes what a command runs that is about one job or pipeline, whose id is its first word: it reads the id, and opens the
// backend around do.
func onOne(do func(c *cobra.Command, at *server, id int64) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		id, err := api.ParseID(words[0])
		if err != nil {
			return usage("%w", err)
		}
		return onBackend(c, func(at *server) error { return do(c, at, id) })
	}
}

// onBackend opens the backend around do.
func onBackend(c *cobra.Command, do func(at *server) error) error {
	at, err := reach(c)
	if err != nil {
		return err
	}
	defer at.Close()
	return do(at)
}
