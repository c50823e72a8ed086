package main

import (
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

// onOne makes what a command runs that is about one job or pipeline, whose id is its first word: it reads the id, and opens the
// database around do.
func onOne(do func(c *cobra.Command, db *client, id int64) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		id, err := api.ParseID(words[0])
		if err != nil {
			return usage("%w", err)
		}
		return onDatabase(c, func(db *client) error { return do(c, db, id) })
	}
}

// onDatabase opens the database around do. What do changes comes from the command line, by the audit.
func onDatabase(c *cobra.Command, do func(db *client) error) error {
	db, err := open(c.Context())
	if err != nil {
		return err
	}
	defer db.Close()
	c.SetContext(job.WithOrigin(c.Context(), job.Origin{Source: "cli"}))
	return do(db)
}
