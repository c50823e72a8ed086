package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

func newJobCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "job ID",
		Short:   "Show one job",
		Example: "  trapeze job 4711\n  trapeze job 4711 --json | jq .result",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := api.ParseID(args[0])
			if err != nil {
				return usage("%w", err)
			}
			from, err := reach(c)
			if err != nil {
				return err
			}
			defer from.Close()
			j, err := from.Job(c.Context(), id)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c, j)
			}
			return printJob(c, j, podOf(c.Context(), from, j), obstaclesOf(c.Context(), from, j))
		},
	}
}

// podOf names the pod of a job. Its boot id alone must do when the pod's row is gone, or who asks may not see pods.
func podOf(ctx context.Context, from *server, j job.Job) string {
	if j.Pod == nil {
		return ""
	}
	pods, err := from.Pods(ctx, true)
	if err != nil {
		return *j.Pod
	}
	for _, p := range pods {
		if p.Boot == *j.Pod {
			kind := ""
			if p.Remote {
				kind = "remote worker, "
			}
			return p.Name + " (" + kind + "boot " + p.Boot + ")"
		}
	}
	return *j.Pod
}

// obstaclesOf says why a job does not run, a line each. A server that is older than this program does not know; the job is shown all the same.
func obstaclesOf(ctx context.Context, from *server, j job.Job) string {
	if j.State.Terminal() || j.State == job.Running {
		return ""
	}
	list, err := from.Obstacles(ctx, j.ID)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, o := range list {
		b.WriteString(o.Says)
		if o.JobID != nil {
			fmt.Fprintf(&b, ": job %d", *o.JobID)
		}
		if o.Until != nil {
			b.WriteString(": " + clock(o.Until))
		}
		if o.Do != "" {
			b.WriteString(" (" + o.Do + ")")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// printJob prints what is known of a job, a line a fact, without those that say nothing.
func printJob(c *cobra.Command, j job.Job, pod, because string) error {
	var b strings.Builder
	colours := inkFor(c.OutOrStdout())
	line := func(name, value string) { fact(&b, colours, name, value) }
	compact := func(raw json.RawMessage) string { return short(string(raw), 2000) }
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
	line("outcome", text(j.Outcome))
	line("reason", text(j.Reason))
	line("error class", text(j.ErrorClass))
	line("error code", text(j.ErrorCode))
	line("error", text(j.Error))
	line("progress", progressOf(j.Progress))
	line("lane", j.Lane)
	line("subject", j.Subject)
	line("priority", strconv.Itoa(j.Priority))
	line("attempt", attempts)
	if j.Crashes > 0 {
		line("crashes", strconv.Itoa(j.Crashes))
	}
	line("fence", strconv.FormatInt(j.Fence, 10))
	line("pod", pod)
	line("pipeline", fmt.Sprintf("%d, step %d", j.PipelineID, j.Step))
	if j.ParentID != nil {
		line("parent", strconv.FormatInt(*j.ParentID, 10))
	}
	line("unique key", text(j.UniqueKey))
	line("submitter", j.Submitter)
	line("created", clock(&j.CreatedAt))
	line("due", clock(j.RunAfter))
	line("started", clock(j.StartedAt))
	line("finished", clock(j.FinishedAt))
	line("args", compact(j.Args))
	line("still to come", compact(j.Planned))
	line("result", compact(j.Result))
	_, err := fmt.Fprint(c.OutOrStdout(), b.String())
	return err
}
