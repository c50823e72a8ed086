package app

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/client"
	"github.com/trapeze-run/trapeze/internal/cli/show"
	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/job"
)

func newLanesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lanes",
		Short: "List lanes: how they are set, what runs and waits in them",
		Long: `List lanes. USED is what runs in all pods together, LIMIT how much may, WAITING what is due, OLDEST since when the first of
that waits. A kind is in the lane that lists it under KINDS, else in the lane default.

Change one: trapeze lane set. Start nothing in one: trapeze drain.`,
		Example: "  trapeze lanes\n  trapeze lanes --watch=1s",
		Args:    cobra.NoArgs,
	}
	every := show.WatchFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return onClient(c, func(at *client.Client) error {
			return show.Watch(c, *every, func(ctx context.Context) error {
				lanes, err := readLanes(ctx, at)
				if err != nil {
					return err
				}
				return printLanes(c, lanes, time.Now())
			})
		})
	}
	return c
}

func printLanes(c *cobra.Command, lanes []job.LaneUse, now time.Time) error {
	return show.List(c, "LANE USED LIMIT WAITING OLDEST STATE POLL STALE AGE KINDS", show.Rows(lanes), func(l job.LaneUse) []string {
		return []string{l.Name, strconv.Itoa(l.Running), limitOf(l), strconv.Itoa(l.Waiting), humanize.Since(l.Oldest, now), laneState(l),
			span(l.PollInterval), span(l.StaleAfter), span(l.MaxAge), humanize.Short(strings.Join(l.Kinds, ","), 60)}
	})
}

// laneState says whether a lane's jobs start, and if not, why.
func laneState(l job.LaneUse) string {
	switch {
	case l.Frozen:
		return "frozen"
	case l.Paused:
		return "paused"
	case !l.Enabled:
		return "disabled"
	case l.Drained:
		return "drained"
	case l.RequiresApproval:
		return "open, by approval"
	}
	return "open"
}

// span shows a duration; nothing when the pods set it.
func span[T fmt.Stringer](d *T) string {
	if d == nil {
		return ""
	}
	return (*d).String()
}

func newLaneCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lane",
		Short: "Change lanes",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newLaneSetCommand(), newLaneRemoveCommand())
	return c
}

func newLaneSetCommand() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "set NAME KEY=VALUE…",
		Short: "Create a lane, or change some of its settings",
		Long: `Create a lane, or change what is named of it; the rest stays. Every pod follows at once, and what runs goes on.

  slots=N               jobs that run at once, over all pods; 0 starts nothing
  slots_per_pod=N       the same on each pod
  poll_interval_ms=N    how often pods look at it without a wake-up, at least 100; or 500ms, 10s
  stale_after_s=N       a handler without a sign of life for so long has failed, of kinds that say nothing; 0 is no limit; or 30m
  max_age_s=N           a job that has not ended for so long fails; 0 is no limit; or 48h
  requires_approval=B   what is submitted waits for trapeze approve
  enabled=B             false: nothing starts
  kinds=A,B             the kinds whose lane it is, all of them; waiting jobs of those that come or go move along

none takes a number away: no limit, or what the pods say. --dry-run tells what would change, and how many jobs that touches.`,
		Example: `  trapeze lane set reports slots=3 kinds=report,export
  trapeze lane set default max_age_s=48h slots=none --dry-run`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			change, err := parseLaneChange(args[1:])
			if err != nil {
				return err
			}
			return onClient(c, func(at *client.Client) error {
				done, err := putSetting[job.LaneChanged](c.Context(), at, client.Path("/admin/workers/lanes/:name", args[0]), dry, change, true)
				if err != nil {
					return err
				}
				return printLaneChanged(c, done)
			})
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only tell what would change")
	return c
}

func newLaneRemoveCommand() *cobra.Command {
	var dry bool
	var to string
	c := &cobra.Command{
		Use:   "rm NAME",
		Short: "Delete a lane",
		Long: `Delete a lane. One that has jobs is not deleted, unless --move-to names another: then what waits moves there, with the kinds
whose lane it was, and what runs goes on to its end. The lane default stays.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return onClient(c, func(at *client.Client) error {
				path := client.Path("/admin/workers/lanes/:name", args[0]) + "?" + client.Query("dry_run", strconv.FormatBool(dry), "move_to", to).Encode()
				done, err := client.Do[job.LaneChanged](c.Context(), at, http.MethodDelete, path, nil)
				if err != nil {
					return err
				}
				return printLaneChanged(c, done)
			})
		},
	}
	c.Flags().StringVar(&to, "move-to", "", "the lane that its waiting jobs and its kinds go to")
	c.Flags().BoolVar(&dry, "dry-run", false, "only tell what would change")
	return c
}

// printLaneChanged tells what became of a lane, or in a dry run would.
func printLaneChanged(c *cobra.Command, done job.LaneChanged) error {
	if show.WantsJSON(c) {
		return show.JSON(c, done)
	}
	verb := "is unchanged"
	switch {
	case done.After == nil:
		verb = "is deleted"
	case done.Created:
		verb = "is made"
	case len(done.Changed) > 0:
		verb = "is changed: " + strings.Join(done.Changed, ", ")
	}
	if done.DryRun {
		verb = strings.Replace(verb, "is ", "would be ", 1)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "lane %s %s; %d running, %d waiting, %d moved\n", humanize.Printable(done.Lane), verb, done.Running, done.Waiting, done.Moved)
	return err
}

// putSetting changes a lane or a schedule that is there, or makes one, unless the change is for one that exists.
func putSetting[T any](ctx context.Context, at *client.Client, path string, dry bool, change any, make bool) (T, error) {
	path += "?dry_run=" + strconv.FormatBool(dry)
	done, err := client.Do[T](ctx, at, http.MethodPatch, path, change)
	if make && client.NotFound(err) {
		return client.Do[T](ctx, at, http.MethodPut, path, change)
	}
	return done, err
}

// limitOf returns the limits of a lane's running jobs: on all pods together, on each.
func limitOf(l job.LaneUse) string {
	var limits []string
	if l.Slots != nil {
		limits = append(limits, strconv.Itoa(*l.Slots))
	}
	if l.SlotsPerPod != nil {
		limits = append(limits, strconv.Itoa(*l.SlotsPerPod)+" a pod")
	}
	return strings.Join(limits, ", ")
}
