package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
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
	args, chain, subject, key, lane, unique, while, idempotencyKey string

	priority, maxAttempts int
	delay, startBy        time.Duration
	approval, ordered     bool
	wait                  bool

	replace                         bool
	debounce, debounceMax, throttle time.Duration
}

func newEnqueueCommand() *cobra.Command {
	var e enqueueFlags
	c := &cobra.Command{
		Use:   "enqueue KIND",
		Short: "Submit a job, or a pipeline, and print its id",
		Long: `Submit a job and print its id. Any kind is accepted: a pod that has its handler runs the job. If no live pod has one, a warning
appears on stderr. --chain sets the steps that follow, as a JSON array of {"kind","args","lane","subject","key","priority"}. A step
inherits omitted fields from the previous step. --wait follows the job and its next steps to the end, and shows why a job waits:
exit code 0 when the last one succeeded, 1 otherwise.

Exit code 4: the connection was lost, and the job may have been submitted. Submit again with the same --idempotency-key; the
server does not create a second job.`,
		Example: `  trapeze enqueue csv_ingest --args '{"file":"flights.csv"}' --subject travel/2025 --wait
  trapeze enqueue report --args @args.json --priority 50 --delay 10m
  jq -c .request body.json | trapeze enqueue import --args - --idempotency-key "$REQUEST_ID"
  trapeze enqueue ingest --chain @steps.json
  trapeze enqueue factor_sync --unique 2025      # a no-op while a job with this key waits
  trapeze enqueue index --args '{"doc":7}' --unique doc-7 --debounce 5s --debounce-max 1m`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return e.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&e.args, "args", "", "arguments: JSON, @file, or - for stdin (default {})")
	f.StringVar(&e.subject, "subject", "", "subject: one job per kind and subject runs at a time")
	f.StringVar(&e.key, "key", "", "key: whose job it is, such as a tenant; jobs of different keys share a lane fairly")
	f.StringVar(&e.lane, "lane", "", "lane (default: its kind's)")
	f.IntVar(&e.priority, "priority", job.DefaultPriority, "priority, -100 to 100, higher first")
	f.DurationVar(&e.delay, "delay", 0, "delay before the job is due, such as 90s")
	f.IntVar(&e.maxAttempts, "max-attempts", 0, "maximum number of attempts (default: its kind's)")
	f.StringVar(&e.unique, "unique", "", "unique key: while a job holds it, return that job instead")
	f.StringVar(&e.while, "unique-while", "", "states in which the job holds its unique key: pending (default) or active")
	f.BoolVar(&e.replace, "replace", false, "give the arguments to the job that waits with the unique key")
	f.DurationVar(&e.debounce, "debounce", 0, "like --replace, and the job becomes due this long after the latest submission")
	f.DurationVar(&e.debounceMax, "debounce-max", 0, "with --debounce: at the latest this long after the first submission")
	f.DurationVar(&e.throttle, "throttle", 0, "like --replace, and jobs with the unique key start at most once in this interval")
	f.StringVar(&e.idempotencyKey, "idempotency-key", "", "safe retry: the same key returns the same job")
	f.StringVar(&e.chain, "chain", "", "next steps: a JSON array, or @file")
	f.DurationVar(&e.startBy, "start-by", 0, "fail the job if it has not started after this time, such as 10m (default: no limit)")
	f.BoolVar(&e.ordered, "ordered", false, "while the job waits for a retry, run no later job of its --subject")
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
		Replaced   bool      `json:"replaced"`
	}](ctx, at, http.MethodPost, "/jobs", s, "Idempotency-Key", e.idempotencyKey)
	if err != nil {
		return err
	}
	answer := map[string]any{
		"id": fmt.Sprint(made.ID), "pipeline_id": fmt.Sprint(made.PipelineID), "state": made.State, "duplicate": made.Duplicate,
		"replaced": made.Replaced,
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
		Kind: kind, Lane: e.lane, Delay: api.Delay(e.delay), UniqueKey: e.unique, UniqueWhile: e.while, AllowUnregistered: true, Approval: e.approval, Ordered: e.ordered,
	}
	if kind == "" {
		return s, cli.Usage("the kind is empty")
	}
	if e.while != "" && e.unique == "" {
		return s, cli.Usage("--unique-while needs --unique KEY")
	}
	changed := c.Flags().Changed
	s.Replace = e.replace
	for flag, field := range map[string]struct {
		from time.Duration
		to   **api.Delay
	}{"debounce": {e.debounce, &s.Debounce}, "debounce-max": {e.debounceMax, &s.DebounceMax}, "throttle": {e.throttle, &s.Throttle}} {
		if changed(flag) {
			*field.to = new(api.Delay(field.from))
		}
	}
	if e.unique == "" && (e.replace || s.Debounce != nil || s.DebounceMax != nil || s.Throttle != nil) {
		return s, cli.Usage("--replace, --debounce and --throttle need --unique KEY")
	}
	if changed("subject") {
		s.Subject = &e.subject
	}
	if changed("key") {
		s.Key = &e.key
	}
	if changed("priority") {
		s.Priority = &e.priority
	}
	if changed("start-by") {
		s.StartBy = (*api.Delay)(&e.startBy)
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
func failureText(j job.JobRow) string {
	why := cli.Text(j.Reason)
	if j.Error != nil {
		first, _, _ := strings.Cut(*j.Error, "\n")
		why += ": " + text.Short(first, 300)
	}
	return why
}

// followEvery is the polling interval for a followed job.
const followEvery = 100 * time.Millisecond

// explainEvery is the interval at which follow asks why a job is waiting.
const explainEvery = time.Second

// waitsFor returns a one-line description of why a job is not running.
func waitsFor(ctx context.Context, at *cli.Client, j job.JobRow) string {
	var why []string
	for _, b := range readBlockers(ctx, at, j.ID, j.State) {
		if b.Why != job.BlockerDue {
			why = append(why, b.Says)
		}
	}
	return text.Printable(strings.Join(why, "; "))
}

// follow waits until a job and its next steps have ended, and returns the last of them. It keeps polling during a database outage.
func follow(ctx context.Context, at *cli.Client, id int64, show *progressLine) (job.JobRow, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var looked time.Time
	waits := ""
	for {
		j, err := readJob(ctx, at, id)
		switch {
		case err == nil:
			if now := time.Now(); now.Sub(looked) >= explainEvery || j.State == job.Running || j.State.Terminal() {
				looked, waits = now, waitsFor(ctx, at, j)
			}
			show.job(j, waits)
		case !cli.MayBeTemporary(err) && ctx.Err() == nil:
			return job.JobRow{}, err
		}
		if err == nil && j.State.Terminal() {
			next, err := nextStep(ctx, at, j)
			switch {
			case err == nil && next == nil:
				return j, nil
			case err == nil:
				id = next.ID
				continue
			case !cli.MayBeTemporary(err) && ctx.Err() == nil:
				return job.JobRow{}, err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			show.endLine()
			return job.JobRow{}, cli.Unknown("interrupted: job %d continues; see trapeze job %d", id, id)
		}
	}
}

// nextStep returns the step after a job, or nil if there is none. The next step exists as soon as the job has succeeded.
func nextStep(ctx context.Context, at *cli.Client, j job.JobRow) (*job.JobRow, error) {
	if j.State != job.Succeeded {
		return nil, nil
	}
	page, err := cli.Get[struct {
		Jobs []job.JobRow `json:"jobs"`
	}](ctx, at, "/jobs", cli.QueryOf("pipeline", strconv.FormatInt(j.PipelineID, 10), "parent", strconv.FormatInt(j.ID, 10), "limit", "1"))
	if err != nil || len(page.Jobs) == 0 {
		return nil, err
	}
	next := &page.Jobs[0]
	if (next.GroupID == nil) != (j.GroupID == nil) || j.GroupID != nil && *next.GroupID != *j.GroupID {
		return nil, nil // a child of a fan-out without a join
	}
	return next, nil
}

// progressLine shows a job's progress. On a terminal, it redraws one line; elsewhere, it prints one line per change.
type progressLine struct {
	to    io.Writer // nil means no output
	bar   bool
	last  string
	began time.Time
}

func newProgressLine(to io.Writer, silent bool) *progressLine {
	f := &progressLine{to: to, began: time.Now()}
	if silent {
		f.to = nil
	}
	f.bar = cli.IsTerminal(to)
	return f
}

// job shows a job's state, followed by the reason for waiting unless waits is empty.
func (f *progressLine) job(j job.JobRow, waits string) {
	if f.to == nil {
		return
	}
	line := fmt.Sprintf("job %d %s %s", j.ID, text.Printable(j.Kind), j.State)
	if waits != "" {
		line += ": " + waits
	}
	if f.bar {
		fmt.Fprintf(f.to, "\r\x1b[K%s %s %s", line, drawBar(j), time.Since(f.began).Truncate(100*time.Millisecond))
		if j.State.Terminal() {
			fmt.Fprintln(f.to)
		}
		return
	}
	if p := cli.Progress(j.Progress); p != "" {
		line += " " + text.Printable(p)
	}
	if line != f.last {
		f.last = line
		fmt.Fprintln(f.to, line)
	}
}

// endLine ends the line that is being redrawn.
func (f *progressLine) endLine() {
	if f.to != nil && f.bar {
		fmt.Fprintln(f.to)
	}
}

// drawBar returns a progress bar for a job, or plain text if the job reports no total.
func drawBar(j job.JobRow) string {
	const width = 30
	p := j.Progress
	if p == nil || p.Done == nil || p.Total == nil || *p.Total <= 0 {
		return text.Printable(cli.Progress(p))
	}
	full := int(max(0, min(*p.Done, *p.Total)) * width / *p.Total)
	return fmt.Sprintf("[%s%s] %s", strings.Repeat("█", full), strings.Repeat("░", width-full), text.Printable(cli.Progress(p)))
}
