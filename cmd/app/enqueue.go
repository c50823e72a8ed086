package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// enqueueFlags holds the flags of enqueue.
type enqueueFlags struct {
	args, chain, subject, lane, key, while, idempotencyKey string

	priority, maxAttempts int
	delay                 time.Duration
	approval, wait        bool
}

func newEnqueueCommand() *cobra.Command {
	var e enqueueFlags
	c := &cobra.Command{
		Use:   "enqueue KIND",
		Short: "Submit a job, or a pipeline, and print its id",
		Long: `Submit a job and print its id. Any kind is accepted: a pod that has its handler runs the job. If no live pod has one, a warning
appears on stderr. --chain sets the steps that follow, as a JSON array of {"kind","args","lane","subject","priority"}. A step
inherits omitted fields from the previous step. --wait follows the job and its next steps to the end, and shows why a job waits:
exit code 0 when the last one succeeded, 1 otherwise.

Exit code 4: the connection was lost, and the job may have been submitted. Submit again with the same --idempotency-key; the
server does not create a second job.`,
		Example: `  trapeze enqueue csv_ingest --args '{"file":"flights.csv"}' --subject travel/2025 --wait
  trapeze enqueue report --args @args.json --priority 50 --delay 10m
  jq -c .request body.json | trapeze enqueue import --args - --idempotency-key "$REQUEST_ID"
  trapeze enqueue ingest --chain @steps.json
  trapeze enqueue factor_sync --unique 2025      # a no-op while a job with this key waits`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return e.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&e.args, "args", "", "arguments: JSON, @file, or - for stdin (default {})")
	f.StringVar(&e.subject, "subject", "", "subject: one job per kind and subject runs at a time")
	f.StringVar(&e.lane, "lane", "", "lane (default: its kind's)")
	f.IntVar(&e.priority, "priority", job.DefaultPriority, "priority, -100 to 100, higher first")
	f.DurationVar(&e.delay, "delay", 0, "delay before the job is due, such as 90s")
	f.IntVar(&e.maxAttempts, "max-attempts", 0, "maximum number of attempts (default: its kind's)")
	f.StringVar(&e.key, "unique", "", "unique key: while a job holds it, return that job instead")
	f.StringVar(&e.while, "unique-while", "", "states in which the job holds its unique key: pending (default) or active")
	f.StringVar(&e.idempotencyKey, "idempotency-key", "", "safe retry: the same key returns the same job")
	f.StringVar(&e.chain, "chain", "", "next steps: a JSON array, or @file")
	f.BoolVar(&e.approval, "needs-approval", false, "hold the job until an operator approves it with trapeze approve")
	f.BoolVar(&e.wait, "wait", false, "follow the job until it finishes; the exit code reports its result")
	return c
}

func (e *enqueueFlags) run(c *cobra.Command, kind string) error {
	s, err := e.submission(c, kind)
	if err != nil {
		return err
	}
	ctx, stop := cli.OnSignal(c.Context())
	defer stop()
	at, err := cli.For(c)
	if err != nil {
		return err
	}
	defer at.Close()
	made, err := cli.Do[struct {
		ID         int64     `json:"id,string"`
		PipelineID int64     `json:"pipeline_id,string"`
		State      job.State `json:"state"`
		Duplicate  bool      `json:"duplicate"`
	}](ctx, at, http.MethodPost, "/jobs", s, "Idempotency-Key", e.idempotencyKey)
	if err != nil {
		return err
	}
	answer := map[string]any{
		"id": fmt.Sprint(made.ID), "pipeline_id": fmt.Sprint(made.PipelineID), "state": made.State, "duplicate": made.Duplicate,
	}
	switch {
	case !cli.WantsJSON(c):
		fmt.Fprintln(c.OutOrStdout(), made.ID)
	case !e.wait:
		warnUnhandled(ctx, c, at, made.ID, made.State)
		return cli.JSON(c, answer)
	}
	if !e.wait {
		warnUnhandled(ctx, c, at, made.ID, made.State)
		return nil
	}
	last, err := follow(ctx, at, made.ID, newProgressLine(c.ErrOrStderr(), cli.WantsJSON(c)))
	if err != nil {
		return err
	}
	if cli.WantsJSON(c) {
		answer["state"], answer["job"] = last.State, last
		if err := cli.JSON(c, answer); err != nil {
			return err
		}
	}
	if last.State != job.Succeeded {
		return cli.Refused("job %d (%s) %s: %s", last.ID, last.Kind, ended(last.State), failureText(last))
	}
	return nil
}

// warnUnhandled warns if no live pod has a handler for a new job.
func warnUnhandled(ctx context.Context, c *cobra.Command, at *cli.Client, id int64, state job.State) {
	for _, b := range readBlockers(ctx, at, id, state) {
		if b.Why == job.BlockerNoHandler || b.Why == job.BlockerNoPods {
			fmt.Fprintf(c.ErrOrStderr(), "warning: %s: job %d waits until a pod that handles its kind starts\n", text.Printable(b.Says), id)
		}
	}
}

// submission returns the submission described by the flags.
func (e *enqueueFlags) submission(c *cobra.Command, kind string) (api.Submission, error) {
	s := api.Submission{
		Kind: kind, Lane: e.lane, Delay: api.Delay(e.delay), UniqueKey: e.key, UniqueWhile: e.while, Foreign: true, Approval: e.approval,
	}
	if kind == "" {
		return s, cli.Usage("the kind is empty")
	}
	if e.while != "" && e.key == "" {
		return s, cli.Usage("--unique-while needs --unique KEY")
	}
	changed := c.Flags().Changed
	if changed("subject") {
		s.Subject = &e.subject
	}
	if changed("priority") {
		s.Priority = &e.priority
	}
	if changed("max-attempts") {
		s.MaxAttempts = &e.maxAttempts
	}
	if e.args != "" {
		if err := decode(c, "--args", e.args, &s.Args); err != nil {
			return s, err
		}
	}
	if e.chain != "" {
		if err := decode(c, "--chain", e.chain, &s.Chain); err != nil {
			return s, err
		}
	}
	return s, nil
}

// decode reads the JSON of a flag from the flag's value, a file, or stdin.
func decode(c *cobra.Command, flag, value string, v any) error {
	source := io.Reader(strings.NewReader(value))
	switch {
	case value == "-":
		source = c.InOrStdin()
	case strings.HasPrefix(value, "@"):
		file, err := os.Open(value[1:])
		if err != nil {
			return cli.Usage("%s: %w", flag, err)
		}
		defer file.Close()
		source = file
	}
	// The server enforces a lower limit.
	if err := api.Decode(io.LimitReader(source, 64<<20), v); err != nil {
		return cli.Usage("%s: %w: want JSON, @file with JSON, or - for stdin", flag, err)
	}
	if raw, ok := v.(*json.RawMessage); ok && len(*raw) > job.MaxArgsBytes {
		return fmt.Errorf("%w: %s: %d bytes, at most %d", job.ErrTooLarge, flag, len(*raw), job.MaxArgsBytes)
	}
	return nil
}

// jsonOf returns the JSON of a flag, or nil if the flag is not set.
func jsonOf(c *cobra.Command, flag, value string) (any, error) {
	if !c.Flags().Changed(flag) {
		return nil, nil
	}
	var raw json.RawMessage
	if err := decode(c, "--"+flag, value, &raw); err != nil {
		return nil, err
	}
	return raw, nil
}

// ended returns a verb phrase for a job's final state.
func ended(s job.State) string {
	if s == job.Cancelled {
		return "was cancelled"
	}
	return string(s)
}

// failureText describes why a job did not succeed.
func failureText(j job.Job) string {
	why := cli.Text(j.Reason)
	if j.Error != nil {
		first, _, _ := strings.Cut(*j.Error, "\n")
		why += ": " + text.Short(first, 300)
	}
	return why
}
