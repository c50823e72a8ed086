package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/trapeze-run/trapeze/internal/cli/demo"
	"github.com/trapeze-run/trapeze/internal/cli/doctor"
	"github.com/trapeze-run/trapeze/internal/cli/env"
	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/internal/cli/server"
	"github.com/trapeze-run/trapeze/internal/cli/show"
)

// run runs one command line and returns its exit code. An error is one line on stderr.
func run(ctx context.Context, args []string) int {
	env.Release = release
	root := newRootCommand()
	root.SetArgs(args)
	running := false
	root.PersistentPreRun = func(*cobra.Command, []string) { running = true }
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.CodeOK
	}
	if !running { // cobra refused the command line itself
		err = exit.Usage("%w; see %s --help", err, command.CommandPath())
	}
	fmt.Fprintln(os.Stderr, "trapeze: "+show.OneLine(err))
	return exit.Code(err)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "trapeze",
		Short: "Background jobs and pipelines on PostgreSQL",
		Long: `Trapeze runs background jobs and multi-step pipelines with PostgreSQL as the only infrastructure. A step that
succeeds hands over to the next in the same commit and the same process; what a crash drops, another pod catches.

  trapeze demo                                    see it work on real data, and survive a killed process
  trapeze serve                                   start a pod; without DATABASE_URL it brings its own PostgreSQL
  export DATABASE_URL=postgres://…                where the other commands look
  trapeze enqueue my_kind --args '{"year":2025}'  submit a job
  trapeze cron set nightly "30 2 * * *" my_kind   submit one every night
  trapeze ps                                      what runs where; trapeze ps --watch
  trapeze doctor                                  what is wrong, and what to do
  trapeze cancel 7                                end a job
  trapeze events --follow                         what happens

Exit codes: 0 ok · 1 refused or not found · 2 usage or configuration · 3 database or server unavailable ·
4 outcome unknown. Every command takes --json: one document, or one object a line for lists and streams.
NO_COLOR=1 turns colours off.`,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f := root.PersistentFlags()
	f.Bool("json", false, "print JSON instead of tables")
	f.String("server", "", "act through the HTTP API of a server instead of DATABASE_URL (TRAPEZE_SERVER)")
	f.String("token", "", "how the server knows who asks; everybody on this machine can see it here, but not in TRAPEZE_TOKEN")
	f.String("reason", "", "why, in your own words, for the audit")
	root.AddCommand(
		demo.Command(), server.Command(), newWorkerCommand(), newMigrateCommand(),
		newEnqueueCommand(), newJobsCommand(), newJobCommand(), newEventsCommand(), newPsCommand(),
		newPipelinesCommand(), newPipelineCommand(), newAbortCommand(), newCompleteCommand(),
		newLanesCommand(), newLaneCommand(), newDrainCommand(), newResumeCommand(), newFreezeCommand(), newThawCommand(),
		newPauseCommand(), newUnpauseCommand(), newCronCommand(), newRetentionCommand(),
		newCancelCommand(), newStopCommand(), newRetryCommand(), newNiceCommand(), newApproveCommand(), newPodsCommand(),
		doctor.Command(), newAuditCommand(), newRoutesCommand(), newExportCommand(), newVersionCommand(),
	)
	completeWords(root)
	group(root)
	return root
}

// groups are the headings of --help, with the commands below them: the commands that an operator needs at night stand first.
var groups = []struct {
	id, title string
	commands  []string
}{
	{"look", "What is going on:", []string{"ps", "job", "jobs", "pipeline", "pipelines", "lanes", "pods", "events", "doctor", "audit", "export"}},
	{"act", "What to do about it:", []string{"cancel", "stop", "retry", "nice", "approve", "complete", "abort", "drain", "resume", "pause",
		"unpause", "freeze", "thaw", "lane", "cron", "retention"}},
	{"run", "Running it:", []string{"demo", "serve", "worker", "enqueue", "migrate"}},
}

// group puts the commands of root below their headings.
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
