// Command trapeze serves, watches and steers background jobs on PostgreSQL. `trapeze --help` teaches it.
//
// It is the wiring and nothing else: what it can do, the packages runner and api can do in any other program.
package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata" // schedules name time zones, and a container of this program alone has none

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

// run runs one command line and returns its exit code. An error is one line on stderr.
func run(ctx context.Context, args []string) int {
	programRelease = release
	root := newRootCommand()
	root.SetArgs(args)
	running := false
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		running = true
		c.SetContext(commandContext(c))
	}
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !running { // cobra refused the command line itself
		err = usage("%w; see %s --help", err, command.CommandPath())
	}
	fmt.Fprintln(os.Stderr, "trapeze: "+oneLine(err))
	return exitCode(err)
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
  trapeze kill 7                                  end a job
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
		newDemoCommand(), newServeCommand(), newWorkerCommand(), newMigrateCommand(),
		newEnqueueCommand(), newJobsCommand(), newJobCommand(), newEventsCommand(), newPsCommand(),
		newPipelinesCommand(), newPipelineCommand(), newAbortCommand(), newCompleteCommand(),
		newLanesCommand(), newLaneCommand(), newDrainCommand(), newResumeCommand(), newFreezeCommand(), newThawCommand(),
		newPauseCommand(), newUnpauseCommand(), newCronCommand(), newRetentionCommand(),
		newKillCommand(), newStopCommand(), newRetryCommand(), newNiceCommand(), newApproveCommand(), newPodsCommand(),
		newDoctorCommand(), newAuditCommand(), newRoutesCommand(), newExportCommand(), newVersionCommand(),
	)
	completeWords(root)
	group(root)
	return root
}

// commandContext says where the command comes from and why, for the audit, and whether it is to go through a server.
func commandContext(c *cobra.Command) context.Context {
	reason, _ := c.Flags().GetString("reason")
	ctx := job.WithOrigin(c.Context(), job.Origin{Source: "cli", Reason: reason})
	if to, _ := c.Flags().GetString("server"); to != "" {
		ctx = context.WithValue(ctx, serverKey{}, to)
	}
	return ctx
}
