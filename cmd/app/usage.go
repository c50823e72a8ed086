package app

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// plainUsage replaces the messages of cobra and pflag about invalid arguments and flag values, for c and its subcommands.
func plainUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.SuggestionsMinimumDistance = 2
		c.Args = func(c *cobra.Command, args []string) error {
			if check(c, args) == nil {
				return nil
			}
			if c.HasSubCommands() && check(c, nil) == nil {
				return unknownCommand(c, args[0])
			}
			usage := c.CommandPath() + strings.TrimPrefix(c.Use, c.Name())
			for more := args; len(more) < len(args)+3; {
				if more = append(more, ""); check(c, more) == nil {
					return fmt.Errorf("missing argument: %s", usage)
				}
			}
			return fmt.Errorf("too many arguments: %s", usage)
		}
	}
	for _, below := range c.Commands() {
		plainUsage(below)
	}
}

// unknownCommand returns the error for a command name that does not exist. The error lists similar names.
func unknownCommand(c *cobra.Command, name string) error {
	like := ""
	if names := c.SuggestionsFor(name); len(names) > 0 {
		like = " (did you mean " + strings.Join(names, " or ") + "?)"
	}
	return fmt.Errorf("unknown command %q for %s%s", name, c.CommandPath(), like)
}

// wants describes the expected flag value for each flag type.
var wants = map[string]string{"int": "a whole number", "int64": "a whole number", "duration": "a duration such as 90s", "bool": "true or false"}

// flagError returns the message about an invalid flag value without pflag's wording.
func flagError(_ *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want := wants[wrong.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
		}
	}
	return err
}

// completeWithin limits how long a completion waits for the database or the server.
const completeWithin = 2 * time.Second

// candidates returns the completions for a position in the command line. A tab separates each word from its description.
type candidates func(ctx context.Context, c *cobra.Command) []string

// completeWords registers completions by name for the flags and arguments of c and its subcommands.
func completeWords(c *cobra.Command) {
	for flag, list := range map[string]candidates{
		"state": fixed(job.States()...), "status": fixed(job.Statuses()...), "lane": laneWords, "kind": kindWords, "pod": podWords, "unique-while": fixed("pending", "active"),
		"missed": fixed("coalesce", "catch_up", "skip"), "overlap": fixed("queue", "skip"),
	} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, completes(list)) // cannot fail: the flag exists
		}
	}
	_, argument, _ := strings.Cut(c.Use, " ")
	for name, list := range map[string]candidates{"ID": jobWords, "KIND": kindWords, "LANE": laneWords, "NAME": laneWords} {
		if word, _, _ := strings.Cut(argument, " "); strings.Trim(word, "[]") == name && c.ValidArgsFunction == nil {
			c.ValidArgsFunction = firstArgument(completes(list))
		}
	}
	for _, below := range c.Commands() {
		completeWords(below)
	}
}

// completes returns a completion function for candidates. Without a database, the function returns no completions, because a completion
// must not print an error.
func completes(list candidates) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(c.Context(), completeWithin)
		defer cancel()
		c.SetContext(ctx)
		var fits []string
		for _, word := range list(ctx, c) {
			if strings.HasPrefix(word, begun) {
				fits = append(fits, word)
			}
		}
		return fits, cobra.ShellCompDirectiveNoFileComp
	}
}

// firstArgument restricts f to the first argument.
func firstArgument(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(c, args, begun)
	}
}

func fixed[T ~string](list ...T) candidates {
	var words []string
	for _, one := range list {
		words = append(words, string(one))
	}
	return func(context.Context, *cobra.Command) []string { return words }
}

// fromServer returns candidates that are read from the server.
func fromServer[T any](read func(context.Context, *cli.Client) iter.Seq2[T, error], name func(T) []string) candidates {
	return func(ctx context.Context, c *cobra.Command) (list []string) {
		at, err := cli.For(c)
		if err != nil {
			return nil
		}
		defer at.Close()
		seen := map[string]bool{}
		for one, err := range read(ctx, at) {
			if err != nil {
				return nil
			}
			for _, word := range name(one) {
				if !seen[word] {
					list, seen[word] = append(list, word), true
				}
			}
		}
		return list
	}
}

var (
	scheduleWords = fromServer(readSchedules,
		func(s job.ScheduleUse) []string { return []string{s.Name + "\t" + text.Printable(s.Words)} })
	laneWords = fromServer(readLanes,
		func(l job.LaneUse) []string { return []string{l.Name} })
	kindWords = fromServer(openPods, func(p job.Pod) []string { return p.Kinds })
	podWords  = fromServer(openPods, func(p job.Pod) []string { return []string{p.Name} })

	jobWords = fromServer(func(ctx context.Context, at *cli.Client) iter.Seq2[job.JobRow, error] {
		return cli.ListAll[job.JobRow](ctx, at, "/jobs", "jobs", cli.QueryOf("limit", "30", "state", "running,pending,awaiting_approval,waiting,failed"))
	}, func(j job.JobRow) []string {
		return []string{fmt.Sprintf("%d\t%s %s %s", j.ID, text.Printable(j.Kind), j.State, text.Printable(j.Subject))}
	})
)

func openPods(ctx context.Context, at *cli.Client) iter.Seq2[job.Pod, error] {
	return readPods(ctx, at, false)
}
