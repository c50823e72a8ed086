package app

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newPipelineCommand() *cobra.Command {
	var (
		follow   bool
		branches int
	)
	c := &cobra.Command{
		Use:   "pipeline ID",
		Short: "Draw a pipeline: its steps, their states, durations and children",
		Long: `Draw a pipeline, given the id of its first job: its finished, current and planned steps. A fan-out shows a progress bar of its
children, and lists the running and failed ones.

  ✓ succeeded   ! with a warning   ✗ failed   ⊘ cancelled   ▶ running
  ⧗ waiting for children or parts   · pending or planned   ? awaiting approval

--follow redraws until the pipeline has finished, or with --json prints each change; the exit code is 0 only if it succeeded.`,
		Example: "  trapeze pipeline 4711\n  trapeze pipeline 4711 --follow\n  trapeze pipeline retry 4711",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if branches < 0 {
				return cli.Usage("--branches %d: want 0 or more", branches)
			}
			return onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
				if follow {
					return followTree(c, at, id, branches)
				}
				tree, err := readTree(c.Context(), at, id, branches)
				if err != nil {
					return err
				}
				return cli.Show(c, tree, func() error { return tree.draw(c.OutOrStdout(), time.Now()) })
			})(c, args)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "redraw until the pipeline has finished")
	c.Flags().IntVar(&branches, "branches", 5, "maximum number of children listed for each fan-out")
	c.AddCommand(newPipelineRetryCommand())
	return c
}

// tree is a pipeline with a method that draws it.
type tree api.Tree

func readTree(ctx context.Context, at *cli.Client, id int64, branches int) (tree, error) {
	return cli.Get[tree](ctx, at, cli.Path("/pipelines/:id", id), cli.QueryOf("branches", strconv.Itoa(branches)))
}

var marks = map[job.State]string{
	job.Succeeded: "✓", job.Failed: "✗", job.Cancelled: "⊘", job.Running: "▶", job.Waiting: "⧗", job.Pending: "·", job.AwaitingApproval: "?",
}

// draw writes the tree, one line per job.
func (t tree) draw(to io.Writer, now time.Time) error {
	var b strings.Builder
	name := ""
	if t.Name != "" {
		name = " " + strconv.Quote(text.Printable(t.Name))
	}
	fmt.Fprintf(&b, "pipeline %d%s  %s  %s\n", t.ID, name, t.Status, elapsed(&t.CreatedAt, t.FinishedAt, now))
	for _, j := range t.Jobs {
		drawBranch(&b, j, "", now)
	}
	for _, s := range job.Following(t.Pipeline.Planned) {
		fmt.Fprintf(&b, "· %-24s planned\n", text.Printable(s.Kind))
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func drawBranch(b *strings.Builder, j api.TreeJob, indent string, now time.Time) {
	mark := marks[j.State]
	if j.State == job.Succeeded && cli.Text(j.Outcome) == string(job.Warning) {
		mark = "!"
	}
	subject := ""
	if j.Subject != "" {
		subject = " " + text.Short(text.Printable(j.Subject), 30)
	}
	fmt.Fprintf(b, "%s%s %-*s %-10d %-10s %8s%s", indent, mark, max(24-len([]rune(indent)), 1), text.Short(text.Printable(j.Kind), 24), j.ID, j.State,
		elapsed(j.StartedAt, j.FinishedAt, now), subject)
	switch {
	case j.State == job.Failed || cli.Text(j.Outcome) == string(job.Warning):
		if note := failureText(j.JobRow); note != "" {
			fmt.Fprintf(b, "  %s", text.Short(text.Printable(note), 80))
		}
	case j.State == job.Running:
		fmt.Fprintf(b, "  %s", drawBar(j.JobRow))
	case j.CancelRequested:
		b.WriteString("  being cancelled")
	}
	b.WriteString("\n")
	if j.FanOut == nil {
		return
	}
	f := j.FanOut
	done := f.States[job.Succeeded] + f.States[job.Failed] + f.States[job.Cancelled]
	fmt.Fprintf(b, "%s├─ %s %d of %s", indent, meter(done, f.Branches), done, text.Count(f.Branches, "child", "children"))
	for _, s := range []job.State{job.Succeeded, job.Failed, job.Cancelled, job.Running, job.Waiting, job.Pending, job.AwaitingApproval} {
		if n := f.States[s]; n > 0 {
			fmt.Fprintf(b, " · %d %s", n, s)
		}
	}
	b.WriteString("\n")
	for _, below := range f.Shown {
		drawBranch(b, below, indent+"│  ", now)
	}
	if more := f.Branches - f.States[job.Succeeded] - f.States[job.Pending] - len(f.Shown); more > 0 && len(f.Shown) > 0 {
		fmt.Fprintf(b, "%s│  … %d more, see jobs --parent %d\n", indent, more, j.ID)
	}
}

// meter returns a progress bar of fixed width.
func meter(done, total int) string {
	const width = 24
	full := width
	if total > 0 {
		full = min(max(done, 0), total) * width / total
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

// elapsed formats the time from began to ended, or from began until now if ended is nil.
func elapsed(began, ended *time.Time, now time.Time) string {
	if began == nil {
		return ""
	}
	if ended != nil {
		now = *ended
	}
	d := max(now.Sub(*began), 0)
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return text.Ago(began, now)
}

// followTreeEvery is the redraw interval of a followed pipeline.
const followTreeEvery = 300 * time.Millisecond

// followTree follows a pipeline until it has finished. With --json, it prints each change; on a terminal, it redraws in place; otherwise,
// it draws only the finished pipeline.
func followTree(c *cobra.Command, at *cli.Client, id int64, branches int) error {
	ctx, stop := cli.OnSignal(c.Context())
	defer stop()
	out, live := c.OutOrStdout(), cli.IsTerminal(c.OutOrStdout())
	tick := time.NewTicker(followTreeEvery)
	defer tick.Stop()
	var printed tree
	for lines := 0; ; {
		t, err := readTree(ctx, at, id, branches)
		switch {
		case err != nil && (!cli.MayBeTemporary(err) || ctx.Err() != nil):
			if cli.Stopped(ctx, ctx.Err()) {
				return cli.Unknown("interrupted: pipeline %d continues; see trapeze pipeline %d", id, id)
			}
			return err
		case err == nil && cli.WantsJSON(c):
			if reflect.DeepEqual(t, printed) {
				break
			}
			if err := cli.JSON(c, t); err != nil {
				return err
			}
			printed = t
		case err == nil && (live || t.Status.Over()):
			var b strings.Builder
			if lines > 0 {
				fmt.Fprintf(&b, "\x1b[%dA\x1b[J", lines)
			}
			var drawn strings.Builder
			if err := t.draw(&drawn, time.Now()); err != nil {
				return err
			}
			lines = strings.Count(drawn.String(), "\n")
			b.WriteString(drawn.String())
			if _, err := io.WriteString(out, b.String()); err != nil {
				return err
			}
		}
		if err == nil && t.Status.Over() {
			if t.Status != job.PipelineSucceeded {
				return cli.Refused("pipeline %d %s; for the reason see trapeze job %d", id, t.Status, t.LastJob)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func newPipelineRetryCommand() *cobra.Command {
	var args string
	var children bool
	c := &cobra.Command{
		Use:   "retry ID",
		Short: "Retry a pipeline from the step that failed",
		Long: `Retry a failed or cancelled pipeline from the step that failed or was cancelled, optionally with other arguments. Steps that succeeded
do not run again. For a fan-out, only children that did not succeed run again.

With --children, only the failed children of a partial or running pipeline run again. If their fan-out has ended, they run independently:
the next step does not run again, and the pipeline stays partial.

Exit code 1 when the pipeline does not exist, when it is neither failed nor cancelled, or with --children when no child has failed.`,
		Example: "  trapeze pipeline retry 4711\n  trapeze pipeline retry 4711 --args '{\"year\":2024}'\n  trapeze pipeline retry 4711 --children",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			other, err := jsonOf(c, "args", args)
			if err != nil {
				return err
			}
			if children && other != nil {
				return cli.Usage("--args changes the step, --children retries its children: use one of them")
			}
			if children {
				return onOne(retryChildren)(c, words)
			}
			return onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
				again, err := tryAgain(c, at, cli.Path("/pipelines/:id/retry", id), other)
				if err != nil {
					return err
				}
				return cli.Done(c, map[string]any{"pipeline": strconv.FormatInt(id, 10), "retried": again},
					"pipeline %d continues with %s", id, text.Count(len(again), "job", "jobs"))
			})(c, words)
		},
	}
	c.Flags().StringVar(&args, "args", "", "other arguments of the step, as JSON, @file, or - for standard input")
	c.Flags().BoolVar(&children, "children", false, "retry only the failed children of a partial or running pipeline")
	return c
}

func retryChildren(c *cobra.Command, at *cli.Client, id int64) error {
	did, err := cli.Post[struct {
		Pipeline string `json:"pipeline"`
		Retried  int    `json:"retried"`
		Skipped  int    `json:"skipped"`
		More     bool   `json:"more"`
	}](c.Context(), at, cli.Path("/pipelines/:id/children/retry", id), nil)
	if err != nil {
		return err
	}
	return cli.Done(c, did, "pipeline %d: %s retried, %d skipped", id, text.Count(did.Retried, "child", "children"), did.Skipped)
}

func newPipelinesCommand() *cobra.Command {
	var (
		statuses    []string
		name, since string
		limit       int
	)
	c := &cobra.Command{
		Use:   "pipelines",
		Short: "List pipelines, newest first",
		Long: `List pipelines that have a name, or more than one planned or finished step, newest first. A pipeline is running until its last step
has finished. Status partial: the last step succeeded, but a child of a fan-out failed.`,
		Example: `  trapeze pipelines --status running
  trapeze pipelines --status failed,partial --since 24h
  trapeze pipelines --name "emissions 2024" --json | jq -r .id`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if len(statuses) > 0 {
				if _, err = text.ParseStatuses(statuses); err != nil {
					return cli.Usage("--status: %w", err)
				}
			}
			if err = checkSince(since); err != nil {
				return err
			}
			if limit < 0 {
				return cli.Usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			query := cli.QueryOf("status", strings.Join(statuses, ","), "name", name, "since", since, "limit", strconv.Itoa(limit))
			return onClient(c, func(at *cli.Client) error {
				now := time.Now()
				pipelines := cli.ListAll[job.Pipeline](c.Context(), at, "/pipelines", "pipelines", query)
				return cli.List(c, "ID NAME STATUS STEP KIND PROGRESS AGE NOTE", pipelines, func(p job.Pipeline) []string {
					step := strconv.Itoa(p.Step + 1)
					if planned := len(job.Following(p.Planned)); planned > 0 {
						step += " of " + strconv.Itoa(p.Step+1+planned)
					}
					return []string{strconv.FormatInt(p.ID, 10), text.Short(p.Name, 30), string(p.Status), step, p.Kind,
						cli.Progress(p.Progress), text.Ago(&p.CreatedAt, now), text.Short(cli.Text(p.Error), 60)}
				})
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only these statuses, separated by commas")
	f.StringVar(&name, "name", "", "only pipelines of this name")
	f.StringVar(&since, "since", "", "only those created since a time such as 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.IntVar(&limit, "limit", 50, "maximum number of rows; 0 for all")
	return c
}

func newCancelPipelineCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel-pipeline PIPELINE",
		Short: "Cancel all unfinished jobs of a pipeline",
		Long: `Cancel every unfinished job of a pipeline, given the id of its first job, and start no next step. Waiting jobs end at once. Running
jobs end as cancelled when their handlers return.

Exit code 1 when the pipeline does not exist, or when all its jobs have finished.`,
		Example: "  trapeze cancel-pipeline 4711",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
			did, err := cli.Post[struct {
				Cancelled []string `json:"cancelled"`
			}](c.Context(), at, cli.Path("/pipelines/:id/cancel", id), nil)
			if err != nil {
				return err
			}
			return cli.Done(c, map[string]any{"pipeline": strconv.FormatInt(id, 10), "cancelled": did.Cancelled},
				"pipeline %d cancelled: %s", id, text.Count(len(did.Cancelled), "job", "jobs"))
		}),
	}
}
