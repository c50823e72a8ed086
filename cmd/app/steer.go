package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newCancelCommand() *cobra.Command {
	var epoch int
	m := manyOrOne{did: "cancelled", one: endJob("/admin/workers/jobs/:id/cancel", &epoch), many: "/admin/workers/jobs/cancel"}
	c := &cobra.Command{
		Use:     "cancel [ID]",
		Aliases: []string{"kill"},
		Short:   "Cancel a job, or all that match a filter",
		Long: `Cancel a job. A waiting job ends at once. A running handler's context is cancelled, on any pod, and the job ends as cancelled
when the handler returns, regardless of the result. If the handler ignores its context, use trapeze force-cancel.

A filter instead of an id cancels all unfinished jobs that match, at most 10,000 at a time. To see the matching jobs first, use
--dry-run. At a terminal, the command asks before it cancels more than 100 jobs; --yes skips the question.

Exit code 1 when the job does not exist or has finished.`,
		Example: "  trapeze cancel 4711\n  trapeze cancel --kind csv_ingest --state pending --dry-run",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 && epoch != 0 {
				return cli.Usage("--epoch needs the id of one job")
			}
			return m.run(c, words)
		},
	}
	m.flags(c)
	epochFlag(c, &epoch)
	return c
}

func newForceCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "force-cancel ID",
		Short: "End a job at once, without waiting for its handler",
		Long: `End a job at once. The handler's context is cancelled, and its result and further writes with its lease are rejected.

Exit code 1 when the job does not exist or has finished.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(endJob("/admin/workers/jobs/:id/force-cancel", new(int))),
	}
}

// endJob returns a function that cancels or stops one job through the given route, provided that the job is in the given epoch.
func endJob(route string, epoch *int) func(*cobra.Command, *cli.Client, int64) error {
	return func(c *cobra.Command, at *cli.Client, id int64) error {
		now, err := cli.Post[struct {
			State job.State `json:"state"`
		}](c.Context(), at, cli.Path(route, id)+inEpoch(*epoch), nil)
		if err != nil {
			return err
		}
		is := string(now.State)
		if now.State == job.Running {
			is = "being cancelled: its handler has been notified"
		}
		return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": now.State}, "job %d is %s", id, is)
	}
}

func newNiceCommand() *cobra.Command {
	var chain bool
	c := &cobra.Command{
		Use:   "nice ID PRIORITY",
		Short: "Change the priority of a waiting job",
		Long: `Change the priority of a waiting job, -100 to 100, higher first. Jobs of equal priority start in the order they became due. Next steps
without a priority inherit it; --chain sets it for the other steps too. For a running job, --chain changes the priority of its next steps,
and its own if it is retried.

Exit code 1 when the job does not exist, is running and --chain is not given, or has finished.`,
		Example: "  trapeze nice 4711 50\n  trapeze nice 4711 -20 --chain",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, words []string) error {
			priority, err := strconv.Atoi(words[1])
			if err != nil || priority < job.MinPriority || priority > job.MaxPriority {
				return cli.Usage("priority %q: want %d to %d", words[1], job.MinPriority, job.MaxPriority)
			}
			return onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
				_, err := cli.Do[cli.None](c.Context(), at, http.MethodPatch, cli.Path("/admin/workers/jobs/:id/priority", id),
					map[string]any{"priority": priority, "chain": chain})
				if err != nil {
					return err
				}
				return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "priority": priority}, "job %d has priority %d", id, priority)
			})(c, words)
		},
	}
	c.Flags().BoolVar(&chain, "chain", false, "also change its planned next steps")
	return c
}

// negative matches a negative number, which pflag mistakes for a flag.
var negative = regexp.MustCompile(`^-[0-9]+$`)

// numbersLast moves any negative numbers in the arguments of nice to the end, after "--".
func numbersLast(root *cobra.Command, args []string) []string {
	c, _, err := root.Find(args)
	if err != nil || c.Name() != "nice" || slices.Contains(args, "--") {
		return args
	}
	var others, numbers []string
	for i, one := range args {
		if negative.MatchString(one) && !(i > 0 && takesValue(c, args[i-1])) {
			numbers = append(numbers, one)
		} else {
			others = append(others, one)
		}
	}
	return slices.Concat(others, []string{"--"}, numbers)
}

// takesValue reports whether an argument is a flag whose value is the next argument.
func takesValue(c *cobra.Command, text string) bool {
	name, long := strings.CutPrefix(text, "--")
	flag := c.Flag(name)
	return long && flag != nil && flag.NoOptDefVal == ""
}

func newApproveCommand() *cobra.Command {
	var epoch int
	c := &cobra.Command{
		Use:   "approve ID",
		Short: "Approve a job that awaits approval",
		Long: `Approve a job. It is then due at once, or after its delay. To list jobs that await approval, use
trapeze jobs --state awaiting_approval. To reject a job, use trapeze cancel. With TRAPEZE_FOUR_EYES, a person other than the submitter must
approve a job.

A job that is cancelled and retried can have other arguments. With --epoch, the command approves only the arguments that trapeze job
showed in that epoch.

Exit code 1 when the job does not exist, does not await approval because it was already approved or its approval has expired, or is in
another epoch.`,
		Example: "  trapeze approve 4711\n  trapeze approve 4711 --epoch 2",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
			if _, err := cli.Post[cli.None](c.Context(), at, cli.Path("/jobs/:id/approve", id)+inEpoch(epoch), nil); err != nil {
				return err
			}
			return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": job.Pending}, "job %d approved", id)
		}),
	}
	epochFlag(c, &epoch)
	return c
}

// epochFlag adds a flag that keeps a command from affecting a job that has since been retried.
func epochFlag(c *cobra.Command, epoch *int) {
	c.Flags().IntVar(epoch, "epoch", 0, "only if the job is still in this epoch, see trapeze job; a retry begins another")
}

// inEpoch returns the query for a request that applies only in the given epoch. It is empty for 0, which means any epoch.
func inEpoch(epoch int) string {
	if epoch == 0 {
		return ""
	}
	return "?epoch=" + strconv.Itoa(epoch)
}

// completion is the request that completes one part of a deferred job.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *string         `json:"error,omitempty"` // nil if the part succeeded
}

func newCompleteCommand() *cobra.Command {
	var p completion
	var result, failure string
	c := &cobra.Command{
		Use:   "complete ID",
		Short: "Complete a deferred job, or one part of it",
		Long: `Complete a deferred job, or one part of it, with the token that its handler issued. After the last part the job ends, and its next step
starts. Completing a part a second time changes nothing. The server's token is a different one: set TRAPEZE_TOKEN.`,
		Example: "  trapeze complete 4711 --token K7… --result '{\"rows\":12}'\n  trapeze complete 4711 --token K7… --part page-3 --error \"no disk\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if p.Token == "" {
				return cli.Usage("want --token, the token that the job's handler issued")
			}
			value, err := jsonOf(c, "result", result)
			if err != nil {
				return err
			}
			p.Result, _ = value.(json.RawMessage)
			if c.Flags().Changed("error") {
				p.Error = &failure
			}
			return onOne(func(c *cobra.Command, at *cli.Client, id int64) error {
				j, err := cli.Post[struct {
					State    job.State     `json:"state"`
					Progress *job.Progress `json:"progress"`
				}](c.Context(), at, cli.Path("/jobs/:id/complete", id), p)
				if err != nil {
					return err
				}
				return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "state": j.State, "progress": j.Progress},
					"job %d is %s %s", id, j.State, cli.Progress(j.Progress))
			})(c, words)
		},
	}
	f := c.Flags()
	f.StringVar(&p.Token, "token", "", "token that the job's handler issued")
	f.StringVar(&p.Part, "part", "", "name of the part, if the job has several")
	f.StringVar(&result, "result", "", "result, as JSON, @file, or - for standard input")
	f.StringVar(&failure, "error", "", "error text; marks the part as failed")
	return c
}

// manyOrOne holds the flags of a command that applies to one job, given by its ID, or to all jobs that match a filter.
type manyOrOne struct {
	which  jobFlags
	dryRun bool
	yes    bool
	did    string // the past participle of the command, such as "cancelled"
	one    func(c *cobra.Command, at *cli.Client, id int64) error
	many   string // the API route for many jobs
}

func (m *manyOrOne) flags(c *cobra.Command) {
	m.which.flags(c)
	c.Flags().BoolVarP(&m.dryRun, "dry-run", "n", false, "show the number of matching jobs and the first ids, change nothing")
	c.Flags().BoolVarP(&m.yes, "yes", "y", false, "do not ask before many jobs are "+m.did)
}

func (m *manyOrOne) run(c *cobra.Command, words []string) error {
	switch {
	case len(words) == 1 && (m.which.any() || m.which.children != "" || m.dryRun):
		return cli.Usage("want an id, or a filter such as --kind, not both")
	case len(words) == 1:
		return onOne(m.one)(c, words)
	case !m.which.any():
		return cli.Usage("want an id, or a filter such as --kind; see %s --help", c.CommandPath())
	}
	selection, err := m.which.selection()
	if err != nil {
		return err
	}
	return onClient(c, func(at *cli.Client) error {
		if m.which.failures != "" {
			m.many = "/failures/retry" // this route needs no permission to manage workers
			if selection, err = failureSet(c, at, selection, m.which.failures); err != nil {
				return err
			}
		}
		if !m.dryRun && !m.yes && cli.CanAsk(c) {
			if err := m.confirm(c, at, selection); err != nil {
				return err
			}
		}
		selection.DryRun = m.dryRun
		did, err := cli.Post[api.Many](c.Context(), at, m.many, selection)
		if err != nil {
			return err
		}
		return cli.Done(c, did, "%s", m.summary(did))
	})
}

// failureSet returns a selection of the jobs that are now in a failure group and failed after the time given in s.
func failureSet(c *cobra.Command, at *cli.Client, s api.BulkRequest, group string) (api.BulkRequest, error) {
	found, err := cli.Get[failureGroup](c.Context(), at, cli.Path("/failures/:id", group), cli.QueryOf("since", s.Filter.Since, "limit", "1"))
	s.Filter.Since, s.Filter.Failures = "", found.Set
	return s, err
}

// unasked is the largest number of jobs that a bulk command changes without asking for confirmation.
const unasked = 100

// confirm asks the operator for confirmation before a command changes many jobs. It returns an error unless the operator agrees.
func (m *manyOrOne) confirm(c *cobra.Command, at *cli.Client, selection api.BulkRequest) error {
	selection.DryRun = true
	would, err := cli.Post[api.Many](c.Context(), at, m.many, selection)
	if err != nil || would.Matched <= unasked || cli.Confirm(c, fmt.Sprintf("%d jobs would be %s; continue?", would.Matched, m.did)) {
		return err
	}
	return cli.Refused("no job was %s", m.did)
}

// summary describes the result of a bulk command on one line.
func (m *manyOrOne) summary(did api.Many) string {
	var b strings.Builder
	jobs := text.Count(did.Matched, "job", "jobs")
	switch {
	case did.DryRun && did.Matched == 0:
		b.WriteString("no job would be " + m.did)
	case did.DryRun:
		sample := strings.Join(did.Sample, " ")
		if did.Matched > len(did.Sample) {
			sample += " …"
		}
		fmt.Fprintf(&b, "%s would be %s: %s", jobs, m.did, sample)
	case did.Skipped > 0:
		fmt.Fprintf(&b, "%d of %s %s; the others changed state concurrently or were refused", did.Done, jobs, m.did)
	default:
		fmt.Fprintf(&b, "%s %s", jobs, m.did)
	}
	if did.More {
		b.WriteString("; more jobs match, run the command again")
	}
	return b.String()
}

func newRetryCommand() *cobra.Command {
	var args string
	m := manyOrOne{did: "retried", many: "/admin/workers/jobs/retry"}
	m.one = func(c *cobra.Command, at *cli.Client, id int64) error {
		other, err := jsonOf(c, "args", args)
		if err != nil {
			return err
		}
		again, err := tryAgain(c, at, cli.Path("/jobs/:id/retry", id), other)
		if err != nil {
			return err
		}
		line := "is pending again"
		if len(again) == 0 {
			line = fmt.Sprintf("waits; for the reason see trapeze job %d", id)
		} else if len(again) != 1 || again[0] != strconv.FormatInt(id, 10) {
			line = "waits again for " + text.Count(len(again), "job", "jobs")
		}
		return cli.Done(c, map[string]any{"id": strconv.FormatInt(id, 10), "retried": again}, "job %d %s", id, line)
	}
	c := &cobra.Command{
		Use:   "retry [ID]",
		Short: "Retry a failed or cancelled job, or all that match a filter",
		Long: `Retry a failed or cancelled job, optionally with other arguments. Its attempts start again at 1, and its history is kept. For a
fan-out, only children that did not succeed run again. A job that needs approval awaits it again if it never ran, or if its arguments
change. For a whole pipeline, use trapeze pipeline retry.

A filter instead of an id retries all failed jobs that match, at most 10,000 at a time, and cancelled jobs only with
--state cancelled. To see the matching jobs first, use --dry-run. At a terminal, the command asks before it retries
more than 100 jobs; --yes skips the question.

Exit code 1 when the job does not exist, is neither failed nor cancelled, or when another job holds its unique key.`,
		Example: "  trapeze retry 4711\n  trapeze retry 4711 --args '{\"year\":2024}'\n  trapeze retry --kind csv_ingest --since 2h --dry-run\n  trapeze retry --failures 3f2a9c1e5b7d0846",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 && c.Flags().Changed("args") {
				return cli.Usage("--args needs the id of one job")
			}
			return m.run(c, words)
		},
	}
	m.flags(c)
	c.Flags().StringVar(&m.which.failures, "failures", "", "only the jobs of a group that trapeze failures lists; --since is then since when they failed, default 24h")
	c.Flags().StringVar(&args, "args", "", "other arguments, as JSON, @file, or - for standard input")
	return c
}

// tryAgain retries a job or a pipeline, with new arguments if args is not nil. It returns the IDs of the jobs that are pending again.
func tryAgain(c *cobra.Command, at *cli.Client, path string, args any) ([]string, error) {
	var body any
	if args != nil {
		body = map[string]any{"args": args}
	}
	answer, err := cli.Post[struct {
		Retried []string `json:"retried"`
	}](c.Context(), at, path, body)
	return answer.Retried, err
}

// target is the lane or pod on which a command acts.
type target struct {
	pod  string
	lane string
}

// read sets the lane from the arguments. It returns an error unless exactly one of lane and pod is given.
func (t *target) read(args []string) error {
	if len(args) == 1 {
		t.lane = args[0]
	}
	if (t.pod == "") == (t.lane == "") {
		return cli.Usage("want a lane, or a pod with --pod")
	}
	return nil
}

// path returns the API path of a command on the target.
func (t *target) path(command string) string {
	if t.pod != "" {
		return cli.Path("/admin/workers/pods/:id/", t.pod) + command
	}
	return cli.Path("/admin/workers/lanes/:name/", t.lane) + command
}

func (t *target) String() string {
	if t.pod != "" {
		return "pod " + t.pod
	}
	return "lane " + t.lane
}

func newDrainCommand() *cobra.Command {
	var t target
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain [LANE]",
		Short: "Stop starting jobs in a lane or on a pod, until trapeze undrain",
		Long: `Stop starting jobs in a lane or on a pod, until trapeze undrain. Running jobs continue; next steps of chains wait, or run on another
pod. A drained pod is alive but not ready. It stays drained when its process restarts under the same name.

--wait waits until no job runs there. After the timeout the exit code is 1, no job is stopped, and the lane or pod stays drained.`,
		Example: `  trapeze drain reports --wait 5m
  trapeze drain --pod web-3 --reason "disk is full"   # by name or id; trapeze pods shows the reason`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return awaitIdle(c, t.String()+" drained", t.path("drain"), wait)
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "name or id of a pod")
	c.Flags().DurationVar(&wait, "wait", 0, "maximum time to wait until no job runs there")
	return c
}

func newUndrainCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:     "undrain [LANE]",
		Short:   "Undrain a lane or pod",
		Example: "  trapeze undrain reports\n  trapeze undrain --pod web-3",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.read(args); err != nil {
				return err
			}
			return changeState(c, t.String()+" undrained", t.path("undrain"))
		},
	}
	c.Flags().StringVar(&t.pod, "pod", "", "name or id of a pod")
	return c
}

func newFreezeCommand() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "freeze",
		Short: "Stop starting jobs on all pods for maintenance, until trapeze unfreeze",
		Long: `Stop starting jobs on all pods, even after a restart, until trapeze unfreeze. Running jobs continue.

--wait waits until no job runs. After the timeout the exit code is 1, no job is stopped, and the queue stays frozen.`,
		Example: "  trapeze freeze --wait 10m && pg_upgrade … && trapeze unfreeze",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return awaitIdle(c, "frozen", "/admin/workers/freeze", wait)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "maximum time to wait until no job runs")
	return c
}

func newUnfreezeCommand() *cobra.Command {
	return queueCommand("unfreeze", "End a freeze", "Drained lanes and pods stay drained, and a paused queue stays paused.", "unfrozen")
}

func newPauseCommand() *cobra.Command {
	return queueCommand("pause", "Stop starting jobs on all pods, until trapeze resume",
		"The pause outlasts restarts. Running jobs continue. For maintenance, and to wait for running jobs, use trapeze freeze.", "paused")
}

func newResumeCommand() *cobra.Command {
	return queueCommand("resume", "End a pause", "A frozen queue stays frozen, and drained lanes and pods stay drained.", "resumed")
}

func queueCommand(use, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return changeState(c, done, "/admin/workers/"+use) },
	}
}

// changeState sends a command that does not wait, and prints the new state, preceded by "already" if nothing changed.
func changeState(c *cobra.Command, now, path string) error {
	return onClient(c, func(at *cli.Client) error { return changeAt(c, at, now, path) })
}

// already inserts "already" before the state, as in "lane reports already drained".
func already(now string) string {
	at := strings.LastIndex(now, " ") + 1
	return now[:at] + "already " + now[at:]
}

func changeAt(c *cobra.Command, at *cli.Client, now, path string) error {
	news, err := cli.Post[struct {
		Changed bool `json:"changed"`
	}](c.Context(), at, path, nil)
	if err != nil {
		return err
	}
	if !news.Changed {
		now = already(now)
	}
	return cli.Done(c, news, "%s", now)
}

// waitAtOnce is the timeout of a single request. It is shorter than the time within which a server must begin its response.
const waitAtOnce = 20 * time.Second

// awaitIdle runs a command that drains or freezes. It repeats the request until no affected job is running or the wait is over, and prints
// how many jobs are still running. If any are, the exit code is 1.
func awaitIdle(c *cobra.Command, now, path string, wait time.Duration) error {
	return onClient(c, func(at *cli.Client) error {
		changed := false
		for until := time.Now().Add(wait); ; {
			step := max(min(time.Until(until), waitAtOnce), 0)
			quiet, err := cli.Post[job.DrainResult](c.Context(), at, path, map[string]string{"wait": step.String()})
			if err != nil {
				return err
			}
			changed = changed || quiet.Changed
			quiet.Changed = changed
			if quiet.Quiet || !quiet.TimedOut || time.Until(until) <= 0 {
				return printQuiet(c, now, quiet)
			}
		}
	})
}

func printQuiet(c *cobra.Command, now string, quiet job.DrainResult) error {
	if !quiet.Changed {
		now = already(now)
	}
	still := "no running jobs"
	if quiet.Running > 0 {
		still = text.Count(quiet.Running, "job", "jobs") + " still running"
	}
	err := cli.Done(c, quiet, "%s; %s", now, still)
	if err == nil && quiet.TimedOut {
		err = cli.Refused("timed out with %s; none was stopped, see trapeze ps", still)
	}
	return err
}
