package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newCronRemoveCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:   "rm NAME",
		Short: "Delete a schedule",
		Long: `Delete a schedule. The jobs that it made go on, and the history of its fires stays. One that the program declares stays away until
somebody sets it again.`,
		Example: "  trapeze cron rm nightly --reason \"done by the warehouse now\"",
	}, func(ctx context.Context, c *cobra.Command, at *server, name string) error {
		if err := at.DeleteSchedule(ctx, name); err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c, map[string]any{"schedule": name, "deleted": true})
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "schedule %s is deleted\n", printable(name))
		return err
	})
}

func newCronPauseCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "pause NAME",
		Short:   "Let a schedule not fire until it is resumed",
		Long:    "Let a schedule not fire until it is resumed. The jobs that it made go on. What would have fired meanwhile is not made up for.",
		Example: "  trapeze cron pause nightly --reason \"month's end\"",
	}, opensSchedule("paused", func(ctx context.Context, at *server, name string) (bool, error) { return at.PauseSchedule(ctx, name) }))
}

func newCronResumeCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "resume NAME",
		Short:   "Let a schedule fire again, from now on",
		Example: "  trapeze cron resume nightly",
	}, opensSchedule("resumed", func(ctx context.Context, at *server, name string) (bool, error) { return at.ResumeSchedule(ctx, name) }))
}

func opensSchedule(now string, do func(context.Context, *server, string) (bool, error)) func(context.Context, *cobra.Command, *server, string) error {
	return func(ctx context.Context, c *cobra.Command, at *server, name string) error {
		news, err := do(ctx, at, name)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c, map[string]any{"changed": news})
		}
		said := fmt.Sprintf("schedule %s is %s", name, now)
		if !news {
			said += ", as before"
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), printable(said))
		return err
	}
}

func newCronTriggerCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:   "trigger NAME",
		Short: "Submit the job of a schedule now, and print its id",
		Long: `Submit the job of a schedule now, beside its fires, which stay as they are; of a paused one too. It prints the job's id. Exit code 1
when no job was made: its unique key is held, or it was refused.`,
		Example: "  trapeze cron trigger nightly --reason \"last night's input was late\"",
	}, func(ctx context.Context, c *cobra.Command, at *server, name string) error {
		fire, err := at.TriggerSchedule(ctx, name)
		if err != nil {
			return err
		}
		return printTriggered(c, fire)
	})
}

// printTriggered prints the job of a fire; its error says that there is none.
func printTriggered(c *cobra.Command, fire job.Fire) (err error) {
	switch {
	case wantsJSON(c):
		err = printJSON(c, fire)
	case fire.Outcome == job.FireFired && fire.JobID != nil:
		_, err = fmt.Fprintln(c.OutOrStdout(), *fire.JobID)
	}
	if err == nil && fire.Outcome != job.FireFired {
		err = refused("schedule %s made no job: %s; see trapeze cron fires %s", fire.Schedule, whyNoJob(fire), fire.Schedule)
	}
	return err
}

func whyNoJob(f job.Fire) string {
	if f.Message != "" {
		return string(f.Outcome) + ": " + f.Message
	}
	return string(f.Outcome)
}
