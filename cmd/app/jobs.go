package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newJobsCommand() *cobra.Command {
	var (
		which   jobFlags
		limit   int
		search  string
		current bool
	)
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, newest first",
		Example: `  trapeze jobs --state running,pending
  trapeze jobs --state failed --since 24h --json | jq -r .error
  trapeze jobs --pipeline 4711
  trapeze jobs --search 'refused args.user.id=7' --state failed
  trapeze jobs --current --kind factor_sync --subject 2025`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			query, err := which.query()
			if err != nil {
				return err
			}
			if search != "" {
				query.Set("search", search)
			}
			if current {
				query.Set("current", "true")
			}
			if limit < 0 {
				return cli.Usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			query.Set("limit", strconv.Itoa(limit))
			return onClient(c, func(at *cli.Client) error {
				now := time.Now()
				jobs := cli.ListAll[job.JobRow](c.Context(), at, "/jobs", "jobs", query)
				return cli.List(c, "ID KIND LANE SUBJECT KEY STATE PRI TRY AGE NOTE", jobs, func(j job.JobRow) []string {
					return []string{
						strconv.FormatInt(j.ID, 10), j.Kind, j.Lane, text.Short(j.Subject, 30), text.Short(j.Key, 20), string(j.State), strconv.Itoa(j.Priority),
						strconv.Itoa(j.Attempt), text.Ago(&j.CreatedAt, now), text.Short(remark(j), 60),
					}
				})
			})
		},
	}
	which.flags(c)
	c.Flags().StringVar(&search, "search", "", "only the job with this id, or jobs with this text in the kind, subject, submitter or error; also error=text and args.path=value")
	c.Flags().BoolVar(&current, "current", false, "only the current run of each kind and subject: the running job, else the latest")
	c.Flags().IntVar(&limit, "limit", 50, "maximum number of rows; 0 for all")
	return c
}

// remark returns the most important information about a job besides its state.
func remark(j job.JobRow) string {
	switch {
	case j.State == job.Failed, j.State == job.Cancelled:
		return failureText(j)
	case j.State.Terminal():
		if cli.Text(j.Outcome) == string(job.Warning) {
			return "warning"
		}
		return ""
	}
	parts := []string{}
	if j.CancelRequested {
		parts = append(parts, "being cancelled")
	}
	if j.State == job.Pending && j.RunAfter != nil && j.RunAfter.After(time.Now()) {
		parts = append(parts, "due "+text.Clock(j.RunAfter))
	}
	if p := cli.Progress(j.Progress); p != "" {
		parts = append(parts, p)
	}
	return strings.Join(parts, ", ")
}

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
			return cli.Show(c, j, func() error { return printJob(c, j, podOf(c.Context(), at, j), blockersOf(c.Context(), at, j)) })
		}),
	}
}

// podOf returns the name of a job's pod, or its pod ID if the pod's row has been deleted or the caller may not see pods.
func podOf(ctx context.Context, at *cli.Client, j job.JobRow) string {
	if j.Pod == nil || j.Engine != "" {
		return ""
	}
	for p, err := range readPods(ctx, at, true) {
		if err == nil && p.PodID == *j.Pod {
			kind := ""
			if p.Remote {
				kind = "remote worker, "
			}
			return p.Name + " (" + kind + "id " + p.PodID + ")"
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
func blockersOf(ctx context.Context, at *cli.Client, j job.JobRow) string {
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
func printJob(c *cobra.Command, j job.JobRow, pod, because string) error {
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
	line("key", j.Key)
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
	if j.Replaced > 0 {
		line("replaced", fmt.Sprintf("%d submissions replaced its args while it waited", j.Replaced))
	}
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

// jobFlags holds the flags that select jobs.
type jobFlags struct {
	api.BulkRequest
	children string
	failures string // a failure group; for retries only
}

func (s *jobFlags) flags(c *cobra.Command) {
	f, to := c.Flags(), &s.Filter
	f.StringSliceVar(&to.State, "state", nil, "only these states, separated by commas")
	f.StringVar(&to.Kind, "kind", "", "only this kind")
	f.StringVar(&to.Lane, "lane", "", "only this lane")
	f.StringVar(&to.Subject, "subject", "", "only this subject")
	f.StringVar(&to.Key, "key", "", "only jobs with this key, such as a tenant")
	f.StringVar(&to.Pipeline, "pipeline", "", "only this pipeline")
	f.StringVar(&to.Parent, "parent", "", "only jobs that follow this job")
	f.StringVar(&to.Since, "since", "", "only those created since a time such as 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.StringVar(&s.children, "children", "", "whether to include children of fan-outs, true or false (default: true with any other filter)")
	f.Lookup("children").NoOptDefVal = "true"
	f.StringVar(&to.Reason, "job-reason", "", "only jobs whose state has this reason, such as timeout")
	f.StringVar(&to.ErrorClass, "error-class", "", "only jobs that failed with an error of this class, such as panic")
	f.StringVar(&to.ErrorCode, "error-code", "", "only jobs that failed with this code: an SQLSTATE, or a code of the handler")
}

// any reports whether at least one flag restricts the selection.
func (s *jobFlags) any() bool {
	f := s.Filter
	return len(f.State) > 0 || f.Kind+f.Lane+f.Subject+f.Key+f.Pipeline+f.Parent+f.Since+f.Reason+f.ErrorClass+f.ErrorCode+s.failures != ""
}

// selection returns the body of a bulk command for the flags.
func (s *jobFlags) selection() (api.BulkRequest, error) {
	body := s.BulkRequest
	if _, err := s.query(); err != nil {
		return body, err
	}
	if s.children != "" {
		body.Filter.Children, _ = text.ParseBool(s.children) // already validated by query
	}
	return body, nil
}

// query returns the job list's query parameters for the flags. The error names the invalid flag.
func (s *jobFlags) query() (url.Values, error) {
	f := s.Filter
	if err := (job.Filter{Reason: job.Reason(f.Reason), ErrorClass: job.ErrorClass(f.ErrorClass), ErrorCode: f.ErrorCode}).Validate(); err != nil {
		return nil, cli.Usage("--job-reason, --error-class, --error-code: %w", err)
	}
	if len(f.State) > 0 {
		if _, err := text.ParseStates(f.State); err != nil {
			return nil, cli.Usage("--state: %w", err)
		}
	}
	for _, id := range [][2]string{{"--pipeline", f.Pipeline}, {"--parent", f.Parent}} {
		if _, err := text.ParseID(id[1]); err != nil && id[1] != "" {
			return nil, cli.Usage("%s: %w", id[0], err)
		}
	}
	if s.children != "" {
		if _, err := text.ParseBool(s.children); err != nil {
			return nil, cli.Usage("--children %w", err)
		}
	}
	return cli.QueryOf("state", strings.Join(f.State, ","), "kind", f.Kind, "lane", f.Lane, "subject", f.Subject, "key", f.Key, "pipeline", f.Pipeline, "parent", f.Parent,
		"since", f.Since, "children", s.children, "reason", f.Reason, "error_class", f.ErrorClass, "error_code", f.ErrorCode), checkSince(f.Since)
}

// checkSince validates --since. An age is sent as it is, because it refers to the database's clock.
func checkSince(since string) error {
	if _, err := text.ParseSince(since, time.Now()); since != "" && err != nil {
		return cli.Usage("--since: %w", err)
	}
	return nil
}
