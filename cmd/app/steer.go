package app

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/client"
	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/internal/cli/show"
	"github.com/trapeze-run/trapeze/job"
)

func newCancelCommand() *cobra.Command {
	m := manyOrOne{did: "cancelled", one: ends("/admin/workers/jobs/:id/cancel"), many: "/admin/workers/jobs/cancel"}
	c := &cobra.Command{
		Use:     "cancel [ID]",
		Aliases: []string{"kill"},
		Short:   "Cancel a job, or all of a filter: a running one by telling its handler",
		Long: `Cancel a job. One that waits ends at once. A running one is told by the end of its context, on whichever pod, and ends
cancelled whatever its handler then returns. A handler that does not listen: trapeze stop.

With a filter instead of an id all jobs are cancelled that it selects and that have not ended, at most 10,000 at a time.
Look first with --dry-run.

Exit code 1 when there is no such job, or when it has ended already.`,
		Example: "  trapeze cancel 4711\n  trapeze cancel --kind csv_ingest --state pending --dry-run",
		Args:    cobra.MaximumNArgs(1),
		RunE:    m.run,
	}
	m.flags(c)
	return c
}

func newStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop ID",
		Short: "End a job at once, whatever its handler does",
		Long: `End a job at once. Its handler is told too, but whatever it still returns or writes with its lease is refused.

Exit code 1 when there is no such job, or when it has ended already.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(ends("/admin/workers/jobs/:id/stop")),
	}
}

// ends makes what ends one job, by a route.
func ends(route string) func(*cobra.Command, *client.Client, int64) error {
	return func(c *cobra.Command, at *client.Client, id int64) error {
		now, err := client.Post[struct {
			State job.State `json:"state"`
		}](c.Context(), at, client.Path(route, id), nil)
		if err != nil {
			return err
		}
		is := string(now.State)
		if now.State == job.Running {
			is = "being cancelled: its handler is told"
		}
		return show.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": now.State}, "job %d is %s", id, is)
	}
}

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
				return exit.Usage("priority %q: want %d to %d", words[1], job.MinPriority, job.MaxPriority)
			}
			return onOne(func(c *cobra.Command, at *client.Client, id int64) error {
				_, err := client.Do[client.None](c.Context(), at, http.MethodPatch, client.Path("/admin/workers/jobs/:id/priority", id),
					map[string]any{"priority": priority, "chain": chain})
				if err != nil {
					return err
				}
				return show.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "priority": priority}, "job %d has priority %d", id, priority)
			})(c, words)
		},
	}
	c.Flags().BoolVar(&chain, "chain", false, "also for the steps that are planned after it")
	return c
}

func newApproveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approve ID",
		Short: "Let a job go that awaits approval",
		Long: `Let a job go that awaits approval: it is due at once, or when its own delay is over. Which ones wait:
trapeze jobs --state awaiting_approval. To refuse one: trapeze cancel.

Exit code 1 when there is no such job, or when it does not await approval: it was approved before, say, or nobody approved
it in time.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *client.Client, id int64) error {
			if _, err := client.Post[client.None](c.Context(), at, client.Path("/jobs/:id/approve", id), nil); err != nil {
				return err
			}
			return show.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": job.Pending}, "job %d is approved", id)
		}),
	}
}

// completion is one part of a deferred job that is completed.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"` // empty: it did not fail
}

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
				return exit.Usage("--token: say the token that the job's handler handed out")
			}
			value, err := jsonOf(c, "result", result)
			if err != nil {
				return err
			}
			p.Result, _ = value.(json.RawMessage)
			return onOne(func(c *cobra.Command, at *client.Client, id int64) error {
				j, err := client.Post[struct {
					State    job.State     `json:"state"`
					Progress *job.Progress `json:"progress"`
				}](c.Context(), at, client.Path("/jobs/:id/complete", id), p)
				if err != nil {
					return err
				}
				return show.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": j.State, "progress": j.Progress},
					"job %d is %s %s", id, j.State, show.Progress(j.Progress))
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
