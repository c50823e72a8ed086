package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newJobCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "job ID",
		Short:   "Show one job",
		Example: "  trapeze job 4711\n  trapeze job 4711 --json | jq .result",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
			j, err := readJob(c.Context(), at, id)
			if err != nil {
				return err
			}
			if cli.WantsJSON(c) {
				return cli.JSON(c, j)
			}
			return printJob(c, j, podOf(c.Context(), at, j), blockersOf(c.Context(), at, j))
		}),
	}
}

// podOf returns the name of a job's pod, or its pod ID if the pod's row has been deleted or the caller may not see pods.
func podOf(ctx context.Context, at *cli.Client, j job.Job) string {
	if j.Pod == nil || j.Engine != "" {
		return ""
	}
	pods, err := readPods(ctx, at, true)
	if err != nil {
		return *j.Pod
	}
	for _, p := range pods {
		if p.Boot == *j.Pod {
			kind := ""
			if p.Remote {
				kind = "remote worker, "
			}
			return p.Name + " (" + kind + "id " + p.Boot + ")"
		}
	}
	return *j.Pod
}

// readBlockers returns the reasons why a job is not running. It returns nil if the job is running or has ended, if the server is too old to
// report blockers, or if the caller may not see the job.
func readBlockers(ctx context.Context, at *cli.Client, id int64, state job.State) []job.Blocker {
	if state.Terminal() || state == job.Running {
		return nil
	}
	answer, err := cli.Get[struct {
		Blockers []job.Blocker `json:"blockers"`
	}](ctx, at, cli.Path("/jobs/:id/blockers", id), nil)
	if err != nil {
		return nil
	}
	return answer.Blockers
}

// blockersOf describes why a job is not running, one reason per line.
func blockersOf(ctx context.Context, at *cli.Client, j job.Job) string {
	var b strings.Builder
	for _, o := range readBlockers(ctx, at, j.ID, j.State) {
		b.WriteString(o.Says)
		if o.JobID != nil {
			fmt.Fprintf(&b, ": job %d", *o.JobID)
		}
		if o.Until != nil {
			b.WriteString(": " + text.Clock(o.Until))
		}
		if o.Do != "" {
			b.WriteString(" (" + o.Do + ")")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// printJob prints the non-empty properties of a job, one per line.
func printJob(c *cobra.Command, j job.Job, pod, because string) error {
	var b strings.Builder
	colours := cli.InkFor(c.OutOrStdout())
	line := func(name, value string) { cli.Fact(&b, colours, name, value) }
	compact := func(raw json.RawMessage) string { return text.Short(string(raw), 2000) }
	attempts := strconv.Itoa(j.Attempt)
	if j.MaxAttempts != nil {
		attempts += " of " + strconv.Itoa(*j.MaxAttempts)
	}
	state := string(j.State)
	if j.CancelRequested {
		state += ", being cancelled"
	}
	line("id", strconv.FormatInt(j.ID, 10))
	line("kind", j.Kind)
	line("state", state)
	line("waits because", because)
	line("outcome", cli.Text(j.Outcome))
	line("reason", cli.Text(j.Reason))
	line("error class", cli.Text(j.ErrorClass))
	line("error code", cli.Text(j.ErrorCode))
	line("error", cli.Text(j.Error))
	line("progress", cli.Progress(j.Progress))
	line("lane", j.Lane)
	line("subject", j.Subject)
	line("priority", strconv.Itoa(j.Priority))
	line("attempt", attempts)
	if j.Crashes > 0 {
		line("crashes", strconv.Itoa(j.Crashes))
	}
	line("fence", strconv.FormatInt(j.Fence, 10))
	line("epoch", strconv.Itoa(j.Epoch))
	line("pod", pod)
	line("engine", strings.TrimSpace(j.Engine+" "+j.EngineURL))
	line("pipeline", fmt.Sprintf("%d, step %d", j.PipelineID, j.Step))
	if j.ParentID != nil {
		line("parent", strconv.FormatInt(*j.ParentID, 10))
	}
	line("unique key", cli.Text(j.UniqueKey))
	line("submitter", j.Submitter)
	line("created", text.Clock(&j.CreatedAt))
	line("due", text.Clock(j.RunAfter))
	line("started", text.Clock(j.StartedAt))
	line("finished", text.Clock(j.FinishedAt))
	line("args", compact(j.Args))
	line("next steps", compact(j.Planned))
	line("result", compact(j.Result))
	_, err := fmt.Fprint(c.OutOrStdout(), b.String())
	return err
}
