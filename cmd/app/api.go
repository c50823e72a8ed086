package app

import (
	"context"

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

func readJob(ctx context.Context, at *cli.Client, id int64) (job.Job, error) {
	return cli.Get[job.Job](ctx, at, cli.Path("/jobs/:id", id), nil)
}

func readPods(ctx context.Context, at *cli.Client, closed bool) ([]job.Pod, error) {
	all := ""
	if closed {
		all = "true"
	}
	answer, err := cli.Get[struct {
		Pods []job.Pod `json:"pods"`
	}](ctx, at, "/admin/workers/pods", cli.QueryOf("all", all))
	return answer.Pods, err
}

func readLanes(ctx context.Context, at *cli.Client) ([]job.LaneUse, error) {
	answer, err := cli.Get[struct {
		Lanes []job.LaneUse `json:"lanes"`
	}](ctx, at, "/admin/workers/lanes", nil)
	return answer.Lanes, err
}

func readSchedules(ctx context.Context, at *cli.Client) ([]job.ScheduleUse, error) {
	answer, err := cli.Get[struct {
		Schedules []job.ScheduleUse `json:"schedules"`
	}](ctx, at, "/admin/workers/schedules", nil)
	return answer.Schedules, err
}
