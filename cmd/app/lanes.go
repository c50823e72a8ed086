package app

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

func newLanesCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "lanes",
		Short: "List lanes with their settings, running and waiting jobs",
		Long: `List lanes. USED is the number of running jobs on all pods, LIMIT its maximum, WAITING the number of due jobs, OLDEST the age of
the oldest of them. A kind belongs to the lane that lists it under KINDS, or else to the default lane. A name that ends in * is a template: lanes
whose names begin like it are made on first use, and deleted when they have been empty for some minutes.

To change a lane, use trapeze lane set. To stop starting its jobs, use trapeze drain.`,
		Example: "  trapeze lanes\n  trapeze lanes --watch=1s",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client) error {
		now := time.Now()
		return cli.List(c, "LANE USED LIMIT WAITING OLDEST STATE STALE AGE START KINDS", readLanes(ctx, at), func(l job.LaneUse) []string {
			return []string{l.Name, strconv.Itoa(l.Running), limitOf(l), strconv.Itoa(l.Waiting), text.Ago(l.Oldest, now), laneState(l),
				span(l.InactivityTimeout), span(l.MaxAge), span(l.StartWithin), text.Short(strings.Join(l.Kinds, ","), 60)}
		})
	})
}

// laneState describes a lane's state and, if the lane starts no jobs, the reason.
func laneState(l job.LaneUse) string {
	switch {
	case job.IsLaneTemplate(l.Name) && l.Enabled:
		return "template"
	case l.Frozen:
		return "frozen"
	case l.Paused:
		return "paused"
	case !l.Enabled:
		return "disabled"
	case l.NextEngine != nil:
		return "moving to " + text.Printable(*l.NextEngine)
	case l.Drained:
		return "drained" + closedBy(l.Drain)
	case l.FourEyes:
		return "open, needs approval by another person" + laneEngine(l)
	case l.RequiresApproval:
		return "open, needs approval" + laneEngine(l)
	case l.Template != nil:
		return "open, from " + text.Printable(*l.Template)
	}
	return "open" + laneEngine(l)
}

// laneEngine describes a lane's engine and the number of jobs that the engine reports. It returns an empty string for PostgreSQL.
func laneEngine(l job.LaneUse) string {
	if l.Engine == job.EnginePostgreSQL || l.Engine == "" {
		return ""
	}
	line := ", " + text.Printable(l.Engine)
	if u := l.EngineUse; u != nil && u.Error != "" {
		line += ": " + text.Short(u.Error, 60)
	} else if u != nil {
		line += fmt.Sprintf(": %d open", u.Open)
	}
	return line
}

// span formats a duration. It returns an empty string for nil, which means that each pod's setting applies.
func span[T fmt.Stringer](d *T) string {
	if d == nil {
		return ""
	}
	return (*d).String()
}

func newLaneCommand() *cobra.Command {
	return parent(&cobra.Command{Use: "lane", Short: "Change lanes"}, newLaneSetCommand(), newLaneRemoveCommand())
}

func newLaneSetCommand() *cobra.Command {
	var dry bool
	var engine string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "set NAME KEY=VALUE…",
		Short: "Create a lane, or change some of its settings",
		Long: `Create a lane, or change the given settings and keep the others. Every pod applies the change at once; running jobs continue.

  slots=N               maximum number of running jobs on all pods; 0 starts no jobs
  slots_per_pod=N       maximum number of running jobs per pod
  inactivity_timeout_s=N       fail handlers that show no sign of life for this long, unless their kind sets a time; 0 means no limit; also 30m
  max_age_s=N           fail jobs that have not finished after this time; 0 means no limit; also 48h
  start_within_s=N      fail new jobs that have not started this long after they were due, such as 600 or 10m; at least 1
  requires_approval=B   submitted jobs, and steps that handlers return from other lanes, wait for trapeze approve
  four_eyes=B           true: a person other than the submitter must approve the job; needs requires_approval=true
  enabled=B             false: no job starts
  kinds=A,B             the complete list of the lane's kinds; waiting jobs of added or removed kinds change lanes

A name that ends in *, such as tenant/*, is a template. A lane whose name begins like it is made when a job for it becomes due, and deleted when it
has had no due jobs for some minutes. It has the settings and limits of the template until you set its own.

The value none removes a number, so that there is no limit or the pods' default applies. --dry-run shows the changes and the number of
affected jobs.

--engine moves the lane to another engine that runs its jobs: the name of an engine that a pod serves, or postgres. No job starts in the lane
until its running jobs have ended and all pods have confirmed. Then the lane moves, and its waiting jobs start there. The command waits for
that, at most for --timeout; the move continues after that. To cancel a move, set the engine that the lane has now.`,
		Example: `  trapeze lane set reports slots=3 kinds=report,export
  trapeze lane set 'tenant/*' slots=2
  trapeze lane set video --engine temporal --timeout 1h
  trapeze lane set default max_age_s=48h slots=none --dry-run`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			change, err := parseLaneChange(args[1:])
			if err != nil {
				return err
			}
			if engine != "" {
				change.Engine = &engine
			}
			return onClient(c, func(at *cli.Client) error {
				done, err := putSetting[job.LaneChanged](c.Context(), at, cli.Path("/admin/workers/lanes/:name", args[0]), dry, change, true)
				if err != nil {
					return err
				}
				if engine == "" || dry {
					return printLaneChanged(c, done)
				}
				return awaitMove(c, at, args[0], timeout)
			})
		},
	}
	c.Flags().StringVar(&engine, "engine", "", "engine that runs the lane's jobs, such as temporal, or postgres")
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "with --engine: maximum time to wait until the lane has moved; 0 does not wait")
	c.Flags().BoolVar(&dry, "dry-run", false, "show the changes without saving")
	return c
}

// progressEvery is the interval at which awaitMove reports progress.
const progressEvery = 5 * time.Second

// awaitMove waits until a lane has moved to another engine, and reports the progress on standard error.
func awaitMove(c *cobra.Command, at *cli.Client, lane string, timeout time.Duration) error {
	said := ""
	for until := time.Now().Add(timeout); ; {
		wait := max(min(time.Until(until), progressEvery), 0)
		m, err := cli.Post[job.LaneMove](c.Context(), at, cli.Path("/admin/workers/lanes/:name/engine", lane), map[string]string{"wait": wait.String()})
		if err != nil {
			return err
		}
		if m.Next == "" {
			return cli.Done(c, m, "lane %s runs on %s", text.Printable(m.Lane), text.Printable(m.Engine))
		}
		waits := fmt.Sprintf("%s still running, %s to confirm", text.Count(m.Running, "job", "jobs"), text.Count(m.Pods, "pod", "pods"))
		if time.Until(until) <= 0 {
			return cli.Refused("lane %s has not moved to %s yet: %s. The move continues; to give it up, run trapeze lane set %s --engine %s",
				text.Printable(m.Lane), text.Printable(m.Next), waits, text.ShellWord(m.Lane), text.ShellWord(m.Engine))
		}
		if waits != said {
			said = waits
			fmt.Fprintf(c.ErrOrStderr(), "lane %s is moving to %s: %s\n", text.Printable(m.Lane), text.Printable(m.Next), waits)
		}
	}
}

func newLaneRemoveCommand() *cobra.Command {
	var dry bool
	var to string
	c := &cobra.Command{
		Use:   "rm NAME",
		Short: "Delete a lane",
		Long: `Delete a lane. A lane that has jobs needs --move-to: its waiting jobs and its kinds move to that lane, and its running jobs continue.
The default lane cannot be deleted.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return onClient(c, func(at *cli.Client) error {
				path := cli.Path("/admin/workers/lanes/:name", args[0]) + "?" + cli.QueryOf("dry_run", strconv.FormatBool(dry), "move_to", to).Encode()
				done, err := cli.Do[job.LaneChanged](c.Context(), at, http.MethodDelete, path, nil)
				if err != nil {
					return err
				}
				return printLaneChanged(c, done)
			})
		},
	}
	c.Flags().StringVar(&to, "move-to", "", "lane that its waiting jobs and kinds move to")
	c.Flags().BoolVar(&dry, "dry-run", false, "show the changes without saving")
	return c
}

// printLaneChanged prints the result of a lane change.
func printLaneChanged(c *cobra.Command, done job.LaneChanged) error {
	verb := "unchanged"
	if done.After == nil {
		verb = "deleted"
	}
	verb = whatChanged(verb, done.Created, done.Changed, done.DryRun)
	return cli.Done(c, done, "lane %s %s; %d running, %d waiting, %d moved", done.Lane, verb, done.Running, done.Waiting, done.Moved)
}

// whatChanged describes the effect of a command on a lane or a schedule: verb, unless the command created it or changed settings.
func whatChanged(verb string, created bool, settings []string, dryRun bool) string {
	switch {
	case created:
		verb = "created"
	case len(settings) > 0:
		verb = "changed: " + strings.Join(settings, ", ")
	}
	if dryRun {
		verb = "would be " + verb
	}
	return verb
}

// putSetting changes a lane or schedule. If make is set, it creates a missing one.
func putSetting[T any](ctx context.Context, at *cli.Client, path string, dry bool, change any, make bool) (T, error) {
	path += "?dry_run=" + strconv.FormatBool(dry)
	done, err := cli.Do[T](ctx, at, http.MethodPatch, path, change)
	if make && cli.NotFound(err) {
		return cli.Do[T](ctx, at, http.MethodPut, path, change)
	}
	return done, err
}

// limitOf describes the limits on a lane's running jobs, across all pods and per pod.
func limitOf(l job.LaneUse) string {
	var limits []string
	if l.Slots != nil {
		limits = append(limits, strconv.Itoa(*l.Slots))
	}
	if l.SlotsPerPod != nil {
		limits = append(limits, strconv.Itoa(*l.SlotsPerPod)+" per pod")
	}
	return strings.Join(limits, ", ")
}

// parseLaneChange parses settings such as slots=3. Each setting may occur only once.
func parseLaneChange(settings []string) (c job.LaneChange, err error) {
	limits := map[string]func(text string) error{
		"slots": number(&c.Slots), "slots_per_pod": number(&c.SlotsPerPod),
		"inactivity_timeout_s": seconds(&c.InactivityTimeout), "max_age_s": seconds(&c.MaxAge), "start_within_s": seconds(&c.StartWithin),
	}
	bools := map[string]**bool{"requires_approval": &c.RequiresApproval, "four_eyes": &c.FourEyes, "enabled": &c.Enabled}
	seen := map[string]bool{}
	for _, one := range settings {
		name, value, ok := strings.Cut(one, "=")
		if !ok {
			return c, cli.Usage("setting %q: want key=value, such as slots=3", one)
		}
		if seen[name] {
			return c, cli.Usage("setting %q given twice", name)
		}
		seen[name] = true
		limit, isLimit := limits[name]
		flag, isBool := bools[name]
		switch {
		case isLimit:
			err = limit(value)
		case isBool:
			*flag, err = parseBool(value)
		case name == "kinds":
			c.Kinds = parseKinds(value)
		default:
			err = fmt.Errorf("unknown setting; see trapeze lane set --help")
		}
		if err != nil {
			return c, cli.Usage("%s: %w", one, err)
		}
	}
	return c, nil
}

// number returns a parser that accepts a number, or "none".
func number(into *job.Limit[int]) func(text string) error {
	return func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case text == "none":
			*into = job.NoLimit[int]()
		case err != nil:
			return fmt.Errorf("want a whole number, or none")
		default:
			*into = job.To(n)
		}
		return nil
	}
}

// seconds returns a parser that accepts a number of seconds, a duration, or "none".
func seconds(into *job.Limit[job.Seconds]) func(text string) error {
	return func(text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		d := time.Duration(n) * time.Second
		if err != nil {
			d, err = time.ParseDuration(text)
		}
		switch {
		case text == "none":
			*into = job.NoLimit[job.Seconds]()
		case err != nil || d%time.Second != 0:
			return fmt.Errorf("want a whole number, a duration in whole seconds, or none")
		default:
			*into = job.To(job.Seconds(d))
		}
		return nil
	}
}

func parseBool(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("want true or false")
	}
	return &yes, nil
}

// parseKinds parses names separated by commas or plus signs. Empty text yields an empty list.
func parseKinds(text string) *[]string {
	kinds := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '+' })
	if kinds == nil {
		kinds = []string{}
	}
	return &kinds
}
