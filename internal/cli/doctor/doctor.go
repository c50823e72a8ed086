// Package doctor examines a database and its pods, and names a remedy for each finding. It works on the database itself, because an API
// may be the part that fails.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/env"
	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/internal/cli/show"
	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// health is how a finding is.
type health string

const (
	healthy health = "ok"
	warning health = "warn" // look at it by daylight
	failing health = "fail" // it keeps jobs from running, or loses them
)

// finding is one thing that the doctor looked at.
type finding struct {
	Check  string `json:"check"`
	Status health `json:"status"`
	Says   string `json:"says"`
	Do     string `json:"do"` // empty: nothing
}

// doctor examines a database and those who work on it.
type doctor struct {
	config env.Settings
	pool   *pgxpool.Pool
	store  *store.Store

	oldest  time.Duration // a transaction may be so old
	overdue time.Duration // a job may have been due for so long

	findings []finding
}

// Command returns the command doctor.
func Command() *cobra.Command {
	var d doctor
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine the database, the pods, the lanes and the schedules, and say what to do",
		Long: `Examine everything that keeps jobs from running or makes the database slow, and say for each finding what to do. It only looks,
apart from one notification that it sends to itself.

Exit code 0 when nothing fails, 1 when something does. A warning can wait until daylight.`,
		Example: `  trapeze doctor
  trapeze doctor --json | jq -r '.findings[] | select(.status == "fail") | .do'
  trapeze doctor --transactions 1m --overdue 30s    # be stricter`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if d.oldest < 0 || d.overdue < 0 {
				return exit.Usage("--transactions and --overdue: want 0 or more")
			}
			if err := d.open(c.Context()); err != nil {
				return err
			}
			defer d.close()
			d.examine(c.Context())
			return d.report(c)
		},
	}
	c.Flags().DurationVar(&d.oldest, "transactions", 5*time.Minute, "a transaction that is older is a warning; twelve times as old, a failure")
	c.Flags().DurationVar(&d.overdue, "overdue", 5*time.Minute, "a job that has been due for longer, and does not run, is a finding")
	return c
}

// open connects without asking for a schema: that may be what is wrong.
func (d *doctor) open(ctx context.Context) (err error) {
	if d.config, err = env.Load(); err != nil {
		return err
	}
	if d.config.DatabaseURL == "" {
		return exit.Usage("doctor looks at the database itself, not through a server: export DATABASE_URL=postgres://user@host/database")
	}
	if d.pool, err = d.config.Connect(ctx, false); err != nil {
		return err
	}
	d.store, err = store.New(ctx, d.pool, store.Options{Schema: d.config.Options.Schema, BehindPooler: d.config.Options.DirectURL != "", AnyServer: true,
		PodConnections: runner.PodConnections})
	if err != nil {
		d.pool.Close()
	}
	return err
}

func (d *doctor) close() {
	d.store.Close()
	d.pool.Close()
}

// examine looks at everything. What needs our tables is left out when they are not those of this program.
func (d *doctor) examine(ctx context.Context) {
	for _, check := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"server", d.server}, {"clock", d.clock}, {"notify", d.notify}, {"horizon", d.horizon},
	} {
		d.check(ctx, check.name, check.do)
	}
	if err := schema.Check(ctx, d.pool, d.config.Options.Schema); err != nil {
		d.find("schema", failing, humanize.OneLine(err), "trapeze migrate up, with the newest program; then trapeze doctor again, for the rest")
		return
	}
	d.find("schema", healthy, fmt.Sprintf("%s is at version %d, as this program needs it", d.config.Options.Schema, schema.Latest()), "")
	for _, check := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"history", d.history}, {"tables", d.tables}, {"partitions", d.partitions}, {"maintenance", d.maintenance}, {"pods", d.pods}, {"running", d.running}, {"lanes", d.lanes}, {"limits", d.limits},
		{"schedules", d.schedules}, {"producers", d.producers},
	} {
		d.check(ctx, check.name, check.do)
	}
}

// check makes a check that could not be made a finding too.
func (d *doctor) check(ctx context.Context, name string, do func(context.Context) error) {
	if err := do(ctx); err != nil {
		d.find(name, failing, "could not be examined: "+humanize.OneLine(err), "see whether the database answers, and whether this role may read")
	}
}

func (d *doctor) find(check string, status health, says, do string) {
	d.findings = append(d.findings, finding{check, status, says, do})
}

// report prints the findings; its error says that something fails.
func (d *doctor) report(c *cobra.Command) error {
	count := map[health]int{}
	for _, f := range d.findings {
		count[f.Status]++
	}
	if show.WantsJSON(c) {
		if err := show.JSON(c, map[string]any{"ok": count[failing] == 0, "findings": d.findings}); err != nil {
			return err
		}
	} else if err := printFindings(c, d.findings); err != nil {
		return err
	}
	if n := count[failing]; n > 0 {
		return exit.Refused("%s of %d: do what the arrows say, then trapeze doctor again", humanize.Count(n, "check fails", "checks fail"), len(d.findings))
	}
	return nil
}

// printFindings prints the findings, within 100 columns, and how many there are of each.
func printFindings(c *cobra.Command, findings []finding) error {
	const indent = 19
	var b strings.Builder
	ink := show.InkFor(c.OutOrStdout())
	count := map[health]int{}
	for _, f := range findings {
		count[f.Status]++
		says := show.Wrap(humanize.Printable(f.Says), 100-indent, strings.Repeat(" ", indent))
		fmt.Fprintf(&b, "%s  %-11s  %s\n", f.Status.shown(ink), f.Check, says)
		if f.Do != "" {
			fmt.Fprintf(&b, "%*s→ %s\n", indent, "", show.Wrap(humanize.Printable(f.Do), 98-indent, strings.Repeat(" ", indent+2)))
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %s\n", count[healthy], humanize.Count(count[warning], "warning", "warnings"), humanize.Count(count[failing], "failure", "failures"))
	_, err := fmt.Fprint(c.OutOrStdout(), b.String())
	return err
}

// shown is how a finding is, four columns wide.
func (h health) shown(colours show.Ink) string {
	code := map[health]string{healthy: show.Green, warning: show.Yellow, failing: show.Red}[h]
	return colours.Colour(code, (string(h) + "    ")[:4])
}
