package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// completeWithin limits how long a completion waits for the database or the server.
const completeWithin = 2 * time.Second

// candidates returns the completions for a position in the command line. A tab separates each word from its description.
type candidates func(ctx context.Context, c *cobra.Command) []string

// completeWords registers completions by name for the flags and arguments of c and its subcommands.
func completeWords(c *cobra.Command) {
	for flag, list := range map[string]candidates{
		"state": stateWords, "status": statusWords, "lane": laneWords, "kind": kindWords, "pod": podWords, "unique-while": fixed("pending", "active"),
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

func fixed(list ...string) candidates {
	return func(context.Context, *cobra.Command) []string { return list }
}

func stateWords(context.Context, *cobra.Command) (list []string) {
	for _, s := range job.States() {
		list = append(list, string(s))
	}
	return list
}

func statusWords(context.Context, *cobra.Command) (list []string) {
	for _, s := range job.Statuses() {
		list = append(list, string(s))
	}
	return list
}

// fromServer returns candidates that are read from the server.
func fromServer[T any](read func(context.Context, *cli.Client) ([]T, error), name func(T) []string) candidates {
	return func(ctx context.Context, c *cobra.Command) (list []string) {
		at, err := cli.For(c)
		if err != nil {
			return nil
		}
		defer at.Close()
		found, err := read(ctx, at)
		if err != nil {
			return nil
		}
		seen := map[string]bool{}
		for _, one := range found {
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

	jobWords = fromServer(func(ctx context.Context, at *cli.Client) ([]job.Job, error) {
		answer, err := cli.Get[struct {
			Jobs []job.Job `json:"jobs"`
		}](ctx, at, "/jobs", cli.QueryOf("limit", "30", "state", "running,pending,awaiting_approval,waiting,failed"))
		return answer.Jobs, err
	}, func(j job.Job) []string {
		return []string{fmt.Sprintf("%d\t%s %s %s", j.ID, text.Printable(j.Kind), j.State, text.Printable(j.Subject))}
	})
)

func openPods(ctx context.Context, at *cli.Client) ([]job.Pod, error) {
	return readPods(ctx, at, false)
}
