// Package app provides the command line for a program that registers handlers: serve, worker, migrate, doctor and all other trapeze
// commands.
//
//	func main() {
//		app.Main(func(_ context.Context, r *runner.Runner, _ *pgxpool.Pool) error {
//			runner.Handle(r, greet)
//			return nil
//		})
//	}
//
// Flags, environment, output and exit codes are the same as for trapeze; docs/reference.md lists them.
package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // schedules use time zones, and a container with nothing but this program has no zone data

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

// Register registers a program's handlers with the runner of serve or worker before the runner starts. serve has already migrated the
// tables, unless --no-migrate is set. The pool is connected to DATABASE_URL; for worker, which has no database, it is nil. If Register
// returns an error, the command fails.
type Register = cli.RegisterHandlers

// Options configures [Command]. The zero value works.
type Options struct {
	// Name is the program's name in help, messages and completions. Default: the name of the executable.
	Name string
	// Release is the program's version, as shown by the version command and in the list of pods. Default: the module version of the build.
	Release string
	// Register registers the handlers. Without it, serve still submits and recovers jobs and serves HTTP but runs no jobs, and worker
	// returns an error.
	Register Register
	// Configure changes the runner's options after they have been set from the environment. For serve, it can set options that have no
	// variable, such as Middleware, OnEnd and TracerProvider. For worker, only Middleware is used. Default: none.
	Configure func(*runner.Options)
}

// Main runs the command given by the process arguments and exits with the command's exit code.
func Main(register Register) {
	os.Exit(Run(context.Background(), Command(Options{Register: register}), os.Args[1:]))
}

// Run runs one command line and returns its exit code. It prints an error as one line on stderr.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(numbersLast(root, args))
	running := false
	beforeRuns(root, func() { running = true })
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return cli.CodeOK
	}
	if !running { // cobra rejected the command line
		err = cli.Usage("%w; see %s --help", err, command.CommandPath())
	}
	fmt.Fprintln(os.Stderr, root.Name()+": "+cli.Named(root, text.OneLine(err)))
	return cli.Code(err)
}

// beforeRuns calls do once cobra has accepted the command line of root or one of its subcommands. It wraps every hook, because cobra runs
// only the nearest one and a program's own commands may define one.
func beforeRuns(c *cobra.Command, do func()) {
	switch own, plain := c.PersistentPreRunE, c.PersistentPreRun; {
	case own != nil:
		c.PersistentPreRunE = func(c *cobra.Command, words []string) error {
			do()
			return own(c, words)
		}
	case plain != nil:
		c.PersistentPreRun = func(c *cobra.Command, words []string) {
			do()
			plain(c, words)
		}
	case !c.HasParent():
		c.PersistentPreRun = func(*cobra.Command, []string) { do() }
	}
	for _, below := range c.Commands() {
		beforeRuns(below, do)
	}
}

// Command returns the root command, for [Run]. A program may add commands to it, and flags to the existing commands. The command must
// remain the root.
func Command(o Options) *cobra.Command {
	root := &cobra.Command{
		Use:         cmp.Or(o.Name, strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")),
		Annotations: map[string]string{cli.ReleaseAnnotation: o.Release},
		Short:       "Background jobs and pipelines on PostgreSQL",
		Long: `Trapeze runs background jobs and multi-step pipelines with PostgreSQL as the only infrastructure. A step that
succeeds starts the next one in the same commit and the same process. When a pod crashes, another pod takes over its jobs.

  trapeze serve                                   start a pod; without DATABASE_URL it starts its own PostgreSQL
  export DATABASE_URL=postgres://…                the database that the other commands use
  trapeze enqueue my_kind --args '{"year":2025}'  submit a job
  trapeze cron set nightly "30 2 * * *" my_kind   submit one every night
  trapeze ps                                      list running jobs and lanes; trapeze ps --watch
  trapeze doctor                                  find problems and their remedies
  trapeze cancel 7                                cancel a job
  trapeze events --follow                         follow the event log

Exit codes: 0 ok · 1 refused or not found · 2 usage or configuration · 3 database or server unavailable ·
4 outcome unknown. Every command takes --json: one document, or one object per line for lists and streams.
NO_COLOR=1 disables colors.`,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f := root.PersistentFlags()
	f.Bool("json", false, "print JSON instead of tables")
	f.String("server", "", "URL of a server's HTTP API, used instead of DATABASE_URL (TRAPEZE_SERVER)")
	f.String("token", "", "token for the server; visible to all users of this machine, prefer TRAPEZE_TOKEN")
	f.String("reason", "", "reason, recorded in the audit log")
	root.AddCommand(
		cli.ServeCommand(o.Register, o.Configure), newWorkerCommand(o.Register, o.Configure), newMigrateCommand(),
		newEnqueueCommand(), newJobsCommand(), newJobCommand(), newFailuresCommand(), newKindsCommand(), newEventsCommand(), newPsCommand(),
		newPipelinesCommand(), newPipelineCommand(), newCancelPipelineCommand(), newCompleteCommand(),
		newLanesCommand(), newLaneCommand(), newLimitCommand(), newDrainCommand(), newUndrainCommand(), newFreezeCommand(), newUnfreezeCommand(),
		newPauseCommand(), newResumeCommand(), newCronCommand(), newRetentionCommand(), newEraseCommand(),
		newCancelCommand(), newForceCancelCommand(), newRetryCommand(), newNiceCommand(), newApproveCommand(), newPodsCommand(), newStatsCommand(),
		cli.DoctorCommand(), newPingCommand(), newAuditCommand(), newRoutesCommand(), newExportCommand(), newVersionCommand(),
	)
	completeWords(root)
	plainUsage(root)
	root.SetFlagErrorFunc(flagError)
	group(root)
	rename(root)
	return root
}

// GroupRun is the ID of the help group for commands that run pods and workers. A program can add commands to the group.
const GroupRun = "run"

// groups lists the headings in --help with their commands, starting with those that an operator needs in an emergency.
var groups = []struct {
	id, title string
	commands  []string
}{
	{"look", "Inspect:", []string{"ps", "job", "jobs", "failures", "pipeline", "pipelines", "lanes", "kinds", "pods", "stats", "events", "doctor", "ping", "audit", "export"}},
	{"act", "Operate:", []string{"cancel", "force-cancel", "cancel-pipeline", "retry", "nice", "approve", "complete", "drain", "undrain", "pause",
		"resume", "freeze", "unfreeze", "lane", "limit", "cron", "retention", "erase"}},
	{GroupRun, "Run:", []string{"serve", "worker", "enqueue", "migrate"}},
}

// group assigns the commands of root to their groups.
func group(root *cobra.Command) {
	of := map[string]string{}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, name := range g.commands {
			of[name] = g.id
		}
	}
	for _, c := range root.Commands() {
		c.GroupID = of[c.Name()]
	}
}

// rename replaces the program's name in the help texts of c and its subcommands.
func rename(c *cobra.Command) {
	c.Short, c.Long, c.Example = cli.Named(c, c.Short), cli.Named(c, c.Long), cli.Named(c, c.Example)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = cli.Named(c, f.Usage) })
	for _, below := range c.Commands() {
		rename(below)
	}
}
