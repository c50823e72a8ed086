package app

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
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
when the handler returns, regardless of the result. If the handler ignores its context, use trapeze stop.

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

func newStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop ID",
		Short: "End a job at once, without waiting for its handler",
		Long: `End a job at once. The handler's context is cancelled, and its result and further writes with its lease are rejected.

Exit code 1 when the job does not exist or has finished.`,
		Args: cobra.ExactArgs(1),
		RunE: onOne(endJob("/admin/workers/jobs/:id/stop", new(int))),
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
