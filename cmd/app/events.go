package app

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// eventsEvery is the polling interval of --follow. eventsAtOnce is the maximum number of events per poll.
const (
	eventsEvery  = 250 * time.Millisecond
	eventsAtOnce = 1000
)

func newEventsCommand() *cobra.Command {
	var jobText, pipelineText, after string
	var follow bool
	c := &cobra.Command{
		Use:   "events",
		Short: "Print the events of a job, of a pipeline, or of all jobs",
		Long: `Print events, oldest first. Every event has a cursor; --after continues after a cursor. --follow waits for new events until
interrupted, or, with --job, until the job has finished.`,
		Example: `  trapeze events --job 4711
  trapeze events --follow --json | jq 'select(.level != "info")'
  trapeze events --pipeline 4711 --after 812.4711.3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			w := watch{path: "/events", after: after, follow: follow}
			if jobText != "" && pipelineText != "" {
				return cli.Usage("want --job or --pipeline, not both")
			}
			if jobText != "" {
				if w.job, err = text.ParseID(jobText); err != nil {
					return cli.Usage("--job: %w", err)
				}
				w.path = cli.Path("/jobs/:id/events", w.job)
			}
			if pipelineText != "" {
				id, err := text.ParseID(pipelineText)
				if err != nil {
					return cli.Usage("--pipeline: %w", err)
				}
				w.path = cli.Path("/pipelines/:id/events", id)
			}
			if _, err := view.EventNo(after); err != nil {
				return cli.Usage("--after: %w", err)
			}
			ctx, stop := cli.OnSignal(c.Context())
			defer stop()
			if w.at, err = cli.For(c); err != nil {
				return err
			}
			defer w.at.Close()
			if err := w.run(ctx, func(e job.Event) error { return printEvent(c, e) }); err != nil && !cli.Stopped(ctx, err) {
				return err
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&jobText, "job", "", "only this job")
	f.StringVar(&pipelineText, "pipeline", "", "only this pipeline")
	f.StringVar(&after, "after", "", "only events after this cursor")
	f.BoolVar(&follow, "follow", false, "wait for new events")
	return c
}

// watch reads the events of one job, one pipeline, or all jobs.
type watch struct {
	at     *cli.Client
	path   string
	job    int64 // 0 unless the events of a single job are read
	after  string
	follow bool
}

func (w *watch) run(ctx context.Context, do func(job.Event) error) error {
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	ended := false
	if w.follow && w.job != 0 && w.after != "" { // all events of a finished job may come before the cursor
		j, err := cli.Get[job.JobRow](ctx, w.at, cli.Path("/jobs/:id", w.job), nil)
		if err != nil && !cli.MayBeTemporary(err) {
			return err
		}
		ended = err == nil && j.State.Terminal()
	}
	for {
		page, err := cli.Get[struct {
			Events []job.Event `json:"events"`
		}](ctx, w.at, w.path, cli.QueryOf("limit", strconv.Itoa(eventsAtOnce), "after", w.after))
		if err != nil && (!w.follow || !cli.MayBeTemporary(err)) {
			return err
		}
		list := page.Events
		for _, e := range list {
			if err := do(e); err != nil {
				return err
			}
			w.after = e.Cursor
			ended = w.job != 0 && e.To.Terminal()
		}
		switch {
		case len(list) == eventsAtOnce:
			continue
		case !w.follow, ended:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// printEvent prints an event on one line.
func printEvent(c *cobra.Command, e job.Event) error {
	if cli.WantsJSON(c) {
		return cli.JSON(c, e)
	}
	parts := []string{e.At.UTC().Format("2006-01-02 15:04:05.000Z"), fmt.Sprintf("%-5s", e.Level)}
	if e.Job != nil {
		parts = append(parts, fmt.Sprintf("job=%d", *e.Job))
	}
	parts = append(parts, e.Event)
	if e.From != e.To {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s → %s", e.From, e.To)))
	}
	if e.Fence != nil && *e.Fence > 0 {
		parts = append(parts, fmt.Sprintf("fence=%d", *e.Fence))
	}
	if e.Pod != nil {
		parts = append(parts, "pod="+podWith(*e.Pod, e.Remote))
	}
	if e.Actor != "" && e.Actor != "system" {
		parts = append(parts, "by="+e.Actor)
	}
	if e.Message != nil {
		parts = append(parts, text.Short(*e.Message, 200))
	}
	if len(e.Fields) > 0 && string(e.Fields) != "null" {
		parts = append(parts, text.Short(string(e.Fields), 200))
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), text.Printable(strings.Join(parts, "  ")))
	return err
}

func newAuditCommand() *cobra.Command {
	var actor, action, target string
	var before int64
	var limit int
	c := &cobra.Command{
		Use:   "audit",
		Short: "List audit entries: actions of operators and their results",
		Long: `List audit entries, newest first: actor, action, target, result, source address and reason. Refused actions are included. The audit
log is append-only and kept forever. For the next page, pass the last id of the list to --before.`,
		Example: `  trapeze audit
  trapeze audit --target "job 4711"
  trapeze audit --actor ana --json | jq -c 'select(.allowed | not)'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 || before < 0 {
				return cli.Usage("--limit %d, --before %d: want a limit of at least 1 and the id of an entry", limit, before)
			}
			query := cli.QueryOf("actor", actor, "action", action, "target", target, "limit", strconv.Itoa(limit))
			if before > 0 {
				query.Set("before", strconv.FormatInt(before, 10))
			}
			return onClient(c, func(at *cli.Client) error {
				rows := cli.ListAll[admin.AuditRow](c.Context(), at, "/admin/audit", "audit", query)
				return cli.List(c, "ID AT ACTOR ACTION TARGET RESULT FROM WHY CHANGE", rows, auditCells)
			})
		},
	}
	flags := c.Flags()
	flags.StringVar(&actor, "actor", "", "only actions of this principal")
	flags.StringVar(&action, "action", "", "only this action, such as job.cancel or lane.set")
	flags.StringVar(&target, "target", "", `only actions on this target, such as "job 4711" or "lane default"`)
	flags.Int64Var(&before, "before", 0, "only entries with smaller ids")
	flags.IntVar(&limit, "limit", 50, "maximum number of rows")
	return c
}

func auditCells(r admin.AuditRow) []string {
	result := "done"
	if !r.Allowed {
		result = "refused"
	}
	return []string{strconv.FormatInt(r.ID, 10), text.Clock(&r.At), r.Actor, r.Action, r.Target, result, r.Source, text.Short(r.Reason, 40), text.Short(change(r), 60)}
}

// change shows the state before and after a command, as recorded in the audit entry.
func change(r admin.AuditRow) string {
	var parts []string
	for _, raw := range []string{string(r.Before), string(r.After)} {
		if raw != "" && raw != "null" {
			parts = append(parts, raw)
		}
	}
	return strings.Join(parts, " → ")
}
