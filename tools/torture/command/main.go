// Command torture is the torture test, which derives faults from a seed, injects them into a small fleet, and judges the records.
//
//	make torture SEED=1 MINUTES=2                       one run: every fault that fits in the time, then a verdict
//	make torture SEED=1 ARGS='-only F24'                one fault, again and again
//	make torture SEED=1 ARGS='-replay torture/1/plan.jsonl'
//	make torture ARGS='-check torture/1'                rejudge an old run
//	make torture ARGS='-mutants all'                    test the test: each planted bug must be caught
//
// It starts its own PostgreSQL, builds the program under test, and leaves a folder with all records.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture"
	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// The exit codes.
const (
	exitGreen   = 0
	exitBroken  = 1 // an invariant is broken
	exitUsage   = 2
	exitMachine = 3 // the torture itself failed or was interrupted
)

const help = `Usage: make torture ARGS='[flags]'

Injects faults into a small fleet and checks the results. It starts its own PostgreSQL, 3 to 6 pods as processes of
the real program, each behind a proxy, 2 remote workers with a proxy before each of their pods, and an external ledger to which
all handlers report. For the given number of minutes, clients
submit jobs and a nemesis executes a plan of faults; the seed determines both. Then all faults are healed, the fleet
gets time to finish its work, and the records are checked, with one line per invariant. An invariant for which nothing could be
checked counts as broken, unless -only or -replay limited the run.

The run's folder, torture/SEED or the next free name, holds the plan, the injected faults, every call, every
line of the ledger, samples, the exported jobs and events, and the log of each process.

Exit codes: 0 green, 1 an invariant is broken, 2 usage error, 3 the run failed or was interrupted.

`

// command holds the parsed command line.
type command struct {
	o       torture.Options
	only    []string
	replay  string
	acts    []history.Act // the plan to replay
	check   string
	race    raceMode
	mutants []string
	list    bool
	asJSON  bool
	verbose bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	c, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGreen
	case err != nil:
		fmt.Fprintln(stderr, "torture:", err)
		return exitUsage
	case c.list:
		return list(c, stdout)
	}
	c.o.Logger = slog.New(slog.DiscardHandler)
	if c.verbose {
		c.o.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills this process immediately, together with the pods and PostgreSQL
	if c.check != "" {
		return judge(c.check, c, stdout, stderr)
	}
	if len(c.mutants) > 0 {
		return runMutants(ctx, c, stdout, stderr)
	}
	return runOnce(ctx, c, stdout, stderr)
}

// raceMode determines whether to build with the race detector: yes, no or auto.
type raceMode string

// of reports whether to use the race detector for the given seed.
func (w raceMode) of(seed uint64) bool { return w == "yes" || w == "auto" && seed%2 == 1 }

// parse parses the command line.
func parse(args []string, stderr io.Writer) (c command, err error) {
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints errors on a single line
	flags.Uint64Var(&c.o.Seed, "seed", uint64(time.Now().Unix()), "seed of the plan and the workload (default: the current time)")
	minutes := flags.Float64("minutes", 1, "minutes during which faults are injected, before the quiet tail")
	flags.IntVar(&c.o.Pods, "pods", 0, "number of pods (default: 3 to 6, chosen by the seed)")
	only := flags.String("only", "", "inject only these `faults`, such as F2,F24")
	flags.StringVar(&c.replay, "replay", "", "replay this `plan`, the plan.jsonl of another run, for as long as it takes")
	flags.StringVar((*string)(&c.race), "race", "auto", "build with the race detector: yes, no, or auto (only if the seed is odd)")
	flags.StringVar(&c.o.Binary, "binary", "", "test this `file` instead of building one; it must be built with the tag failpoints")
	flags.StringVar(&c.o.Mutant, "mutant", "", "plant this `bug` in the program under test")
	hunted := flags.String("mutants", "", fmt.Sprintf("instead of one run, plant each of these `bugs`, or all, until one of %d seeds catches it (default: seed 1, %d minutes)",
		mutantSeeds, mutantMinutes))
	flags.StringVar(&c.o.Dir, "dir", "", "the run's `folder`, which must not exist (default: torture/SEED)")
	flags.StringVar(&c.check, "check", "", "only check the run in this `folder` again")
	flags.BoolVar(&c.list, "list", false, "list each fault with its injectors, or the reason why it cannot be injected")
	flags.BoolVar(&c.asJSON, "json", false, "print the verdict as one JSON document; progress stays on stderr")
	flags.BoolVar(&c.verbose, "v", false, "log the steps of the torture test itself to stderr")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stderr, help)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return c, err
	} else if err != nil {
		return c, fmt.Errorf("%w; see -help", err)
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q; see -help", flags.Arg(0))
	}
	if _, known := torture.MutantNamed(c.o.Mutant); c.o.Mutant != "" && (!known || c.o.Binary != "") {
		return c, fmt.Errorf("-mutant %s: want one of %s, and no -binary", c.o.Mutant, strings.Join(torture.MutantNames(), ", "))
	}
	if c.mutants, err = mutants(*hunted); err != nil {
		return c, fmt.Errorf("-mutants: %w", err)
	}
	if len(c.mutants) > 0 {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for _, alone := range []string{"mutant", "only", "replay", "check", "dir", "binary"} {
			if given[alone] {
				return c, fmt.Errorf("-mutants and -%s: want only one of them", alone)
			}
		}
		if !given["seed"] {
			c.o.Seed = 1
		}
		if !given["minutes"] {
			*minutes = mutantMinutes
		}
	}
	if *minutes <= 0 || *minutes > 24*60 {
		return c, fmt.Errorf("-minutes %g: want more than 0 and at most a day", *minutes)
	}
	c.o.Duration = time.Duration(*minutes * float64(time.Minute)).Round(time.Second)
	if c.o.Pods < 0 || c.o.Pods > 32 {
		return c, fmt.Errorf("-pods %d: want 1 to 32, or 0 to let the seed choose", c.o.Pods)
	}
	if !slices.Contains([]raceMode{"yes", "no", "auto"}, c.race) {
		return c, fmt.Errorf("-race %q: want yes, no or auto", c.race)
	}
	c.o.Race = c.race.of(c.o.Seed)
	if c.only, err = faults(*only); err != nil {
		return c, err
	}
	if c.replay != "" && len(c.only) > 0 {
		return c, errors.New("-replay and -only: want only one of them")
	}
	c.o.Narrowed = len(c.only) > 0 || c.replay != ""
	if c.replay != "" {
		c.acts, err = c.plan()
	}
	return c, err
}

// faults parses a list of fault names.
func faults(text string) (names []string, err error) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.ToUpper(strings.TrimSpace(name)); name == "" {
			continue
		}
		f, known := torture.FaultNamed(name)
		switch {
		case !known:
			return nil, fmt.Errorf("-only %s: unknown fault; see -list", name)
		case f.Always != "":
			return nil, fmt.Errorf("-only %s: %s", name, f.Always)
		case len(f.Injectors) == 0:
			return nil, fmt.Errorf("-only %s: cannot be injected: %s", name, f.Cannot)
		}
		names = append(names, name)
	}
	return names, nil
}

// plan reads the plan to replay, and extends the run's duration and number of pods as the plan requires.
func (c *command) plan() ([]history.Act, error) {
	plan, err := history.ReadLines[history.Act](c.replay)
	if err != nil {
		return nil, fmt.Errorf("-replay: %w", err)
	}
	for _, act := range plan {
		c.o.Duration = max(c.o.Duration, act.At+act.For+time.Second)
		var n int
		if _, err := fmt.Sscanf(act.Pod, "pod%d", &n); err == nil {
			c.o.Pods = max(c.o.Pods, n)
		}
	}
	return plan, nil
}

// freeFolder returns the preferred folder for a run, with a number appended if the folder already exists. If a folder's existence cannot be
// determined, freeFolder returns it, and creating the folder then reports the reason.
func freeFolder(first string) string {
	dir := first
	for n := 2; ; n++ {
		if _, err := os.Lstat(dir); err != nil {
			return dir
		}
		dir = fmt.Sprintf("%s-%d", first, n)
	}
}

// list prints the faults.
func list(c command, stdout io.Writer) int {
	if c.asJSON {
		return printJSON(stdout, torture.Faults)
	}
	for _, f := range torture.Faults {
		fmt.Fprintf(stdout, "%-4s %s\n", f.Name, f.What)
		switch {
		case f.Cannot != "":
			fmt.Fprintf(stdout, "     cannot be done: %s\n", f.Cannot)
		case f.Always != "":
			fmt.Fprintf(stdout, "     %s\n", f.Always)
		default:
			fmt.Fprintf(stdout, "     by %s\n", strings.Join(slices.Sorted(slices.Values(f.Injectors)), ", "))
		}
	}
	fmt.Fprintln(stdout, "\nInvariants that are not judged:")
	for _, one := range checker.NotYet {
		fmt.Fprintf(stdout, "%s: %s\n", one.Invariant, one.Why)
	}
	return exitGreen
}
