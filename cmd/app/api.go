package app

import (
	"context"
	"iter"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// onOne returns the RunE function of a command whose first argument is the ID of a job or pipeline. The function opens a client, calls do
// and closes the client.
func onOne(do func(c *cobra.Command, at *cli.Client, id int64) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		id, err := text.ParseID(words[0])
		if err != nil {
			return cli.Usage("%w", err)
		}
		return onClient(c, func(at *cli.Client) error { return do(c, at, id) })
	}
}

// onClient opens a client, calls do and closes the client.
func onClient(c *cobra.Command, do func(at *cli.Client) error) error {
	at, err := cli.For(c)
	if err != nil {
		return err
	}
	defer at.Close()
	return do(at)
}

func readJob(ctx context.Context, at *cli.Client, id int64) (job.JobRow, error) {
	return cli.Get[job.JobRow](ctx, at, cli.Path("/jobs/:id", id), nil)
}

// watched completes a command that shows the present once or, with --watch, again and again.
func watched(c *cobra.Command, show func(ctx context.Context, c *cobra.Command, at *cli.Client) error) *cobra.Command {
	every := cli.WatchFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return onClient(c, func(at *cli.Client) error {
			return cli.Watch(c, *every, func(ctx context.Context) error { return show(ctx, c, at) })
		})
	}
	return c
}

// parent completes a command that only groups others.
func parent(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.Args, c.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
	c.AddCommand(commands...)
	return c
}

func readPods(ctx context.Context, at *cli.Client, closed bool) iter.Seq2[job.Pod, error] {
	return cli.ListAll[job.Pod](ctx, at, "/admin/workers/pods", "pods", url.Values{"all": {strconv.FormatBool(closed)}})
}

func readLanes(ctx context.Context, at *cli.Client) iter.Seq2[job.LaneUse, error] {
	return cli.ListAll[job.LaneUse](ctx, at, "/admin/workers/lanes", "lanes", nil)
}

func readSchedules(ctx context.Context, at *cli.Client) iter.Seq2[job.ScheduleUse, error] {
	return cli.ListAll[job.ScheduleUse](ctx, at, "/admin/workers/schedules", "schedules", nil)
}
