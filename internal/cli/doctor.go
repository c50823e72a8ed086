package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

// DoctorCommand returns the doctor command.
func DoctorCommand() *cobra.Command {
	var t doctor.Thresholds
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database, pods, lanes and schedules, and propose remedies",
		Long: `Find the causes of jobs that do not run and of a slow database, and propose a remedy for each finding. It changes nothing; it sends
one notification to itself.

With --server, the pod that responds checks the database with its own settings. The checks of the connection and the schema (server,
notify, schema) need DATABASE_URL and are skipped.

Exit code 0 when no check fails, 1 otherwise. A warning is not urgent.`,
		Example: `  trapeze doctor
  trapeze doctor --json | jq -r '.findings[] | select(.status == "fail") | .do'
  trapeze doctor --transactions 1m --overdue 30s    # be stricter`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if t.Transaction < 0 || t.Overdue < 0 {
				return Usage("--transactions and --overdue: want 0 or more")
			}
			findings, err := examine(c, t)
			if err != nil {
				return err
			}
			return report(c, findings)
		},
	}
	c.Flags().DurationVar(&t.Transaction, "transactions", doctor.DefaultThreshold, "warn about transactions older than this; twelve times this age is a failure")
	c.Flags().DurationVar(&t.Overdue, "overdue", doctor.DefaultThreshold, "report due jobs that have not started after this time")
	return c
}

// examine runs all checks. With a server, it returns the API's findings or its error. Without a server, an API failure becomes a single
// finding, and the API's checks are omitted if the API cannot use the schema.
func examine(c *cobra.Command, t doctor.Thresholds) ([]doctor.Finding, error) {
	config, err := Load()
	if err != nil {
		return nil, err
	}
	if ServerFlag(c, config) != "" {
		return served(c, t)
	}
	own, tables, err := examineConnection(c.Context(), config)
	if err != nil || !tables {
		return own, err
	}
	others, err := served(c, t)
	if err == nil { // the API's finding on locks is newer
		own = slices.DeleteFunc(own, func(f doctor.Finding) bool { return f.Check == "locks" })
	} else {
		others = []doctor.Finding{{Check: "api", Status: doctor.Failing, Says: "the other checks did not run: " + text.OneLine(err),
			Do: "fix the failures above, check that the database responds and that this role has read access, then run trapeze doctor again"}}
	}
	return inOrder(append(own, others...)), nil
}

// served returns the API's findings.
func served(c *cobra.Command, t doctor.Thresholds) ([]doctor.Finding, error) {
	at, err := For(c)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	answer, err := Get[struct{ Findings []doctor.Finding }](c.Context(), at, "/doctor",
		QueryOf("transactions", t.Transaction.String(), "overdue", t.Overdue.String()))
	return answer.Findings, err
}

// first lists the server and connection checks, which are shown first. The other checks follow in the API's order.
var first = []string{"locks", "server", "durability", "autovacuum", "connections", "slots", "clock", "notify", "horizon", "schema"}

func inOrder(findings []doctor.Finding) []doctor.Finding {
	rank := func(f doctor.Finding) int {
		if i := slices.Index(first, f.Check); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(findings, func(a, b doctor.Finding) int { return cmp.Compare(rank(a), rank(b)) })
	return findings
}

// report prints the findings, and returns an error if a check failed.
func report(c *cobra.Command, findings []doctor.Finding) error {
	failures := count(findings)[doctor.Failing]
	if WantsJSON(c) {
		if err := JSON(c, map[string]any{"ok": failures == 0, "findings": findings}); err != nil {
			return err
		}
	} else if err := printFindings(c, findings); err != nil {
		return err
	}
	if failures > 0 {
		return Refused("%d of %s failed: apply the proposed remedies, then run trapeze doctor again", failures, text.Count(len(findings), "check", "checks"))
	}
	return nil
}

// count returns the number of findings for each health status.
func count(findings []doctor.Finding) map[doctor.Health]int {
	number := map[doctor.Health]int{}
	for _, f := range findings {
		number[f.Status]++
	}
	return number
}

// printFindings prints the findings in at most 100 columns, followed by the number of findings for each health status.
func printFindings(c *cobra.Command, findings []doctor.Finding) error {
	const indent = 19
	var b strings.Builder
	ink := InkFor(c.OutOrStdout())
	for _, f := range findings {
		says := Wrap(text.Printable(f.Says), 100-indent, strings.Repeat(" ", indent))
		fmt.Fprintf(&b, "%s  %-11s  %s\n", shown(f.Status, ink), text.Printable(f.Check), says)
		if f.Do != "" {
			fmt.Fprintf(&b, "%*s→ %s\n", indent, "", Wrap(text.Printable(Named(c, f.Do)), 98-indent, strings.Repeat(" ", indent+2)))
		}
	}
	number := count(findings)
	fmt.Fprintf(&b, "\n%d ok, %s, %s\n", number[doctor.Healthy], text.Count(number[doctor.Warning], "warning", "warnings"),
		text.Count(number[doctor.Failing], "failure", "failures"))
	_, err := fmt.Fprint(c.OutOrStdout(), b.String())
	return err
}

// shown formats a health status to fit four columns.
func shown(h doctor.Health, colours Ink) string {
	code := map[doctor.Health]string{doctor.Healthy: Green, doctor.Warning: Yellow, doctor.Failing: Red}[h]
	return colours.Colour(code, fmt.Sprintf("%-4.4s", text.Printable(string(h))))
}

// connection holds the connection to DATABASE_URL, and the findings of the checks that do not need the API.
type connection struct {
	config   Settings
	pool     *pgxpool.Pool
	store    *store.Store
	findings []doctor.Finding
}

// examineConnection runs the checks that do not need the API. It accepts a standby and any schema version, because the checks report those
// problems. tables reports whether an API can use the schema.
func examineConnection(ctx context.Context, config Settings) (findings []doctor.Finding, tables bool, err error) {
	if config.DatabaseURL == "" {
		return nil, false, ErrNoDatabase
	}
	pool, err := config.Connect(ctx, false)
	if err != nil {
		return nil, false, err
	}
	defer pool.Close()
	s, err := store.New(ctx, pool, store.Options{Schema: config.Options.Schema, BehindPooler: config.Options.DirectURL != "", AnyServer: true,
		PodConnections: runner.PodConnections})
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	d := &connection{config: config, pool: pool, store: s}
	d.locks(ctx)
	d.server(ctx)
	d.notify(ctx)
	err = schema.Check(ctx, pool, config.Options.Schema)
	d.schema(err)
	return d.findings, err == nil, nil
}

func (d *connection) find(check string, status doctor.Health, says, do string) {
	d.findings = append(d.findings, doctor.Finding{Check: check, Status: status, Says: says, Do: do})
}

// schema adds a finding on whether the schema matches this program.
func (d *connection) schema(err error) {
	if errors.Is(err, schema.ErrRowSecurity) {
		d.find("schema", doctor.Failing, text.OneLine(err), "as the owner, for each table: alter table TABLE disable row level security; or create policy all_rows on TABLE using (true)")
		return
	}
	if errors.Is(err, schema.ErrNoData) {
		d.find("schema", doctor.Failing, text.OneLine(err), "drop schema "+d.config.Options.Schema+" cascade; then restore it with its data, or run trapeze migrate up")
		return
	}
	if err != nil {
		d.find("schema", doctor.Failing, text.OneLine(err), "run trapeze migrate up with the newest program, then trapeze doctor again for the other checks")
		return
	}
	d.find("schema", doctor.Healthy, fmt.Sprintf("%s is at version %d, which this program needs", d.config.Options.Schema, schema.Latest()), "")
}

// locks adds findings on sessions that block Trapeze's sessions. If the check fails, the check server reports the cause.
func (d *connection) locks(ctx context.Context) {
	if found, err := doctor.Locks(ctx, d.store); err == nil {
		d.findings = append(d.findings, found...)
	}
}

// server adds a finding on whether the server accepts writes.
func (d *connection) server(ctx context.Context) {
	s, err := view.ReadServer(ctx, d.store)
	switch {
	case err != nil:
		d.find("server", doctor.Failing, "check failed: "+text.OneLine(err), "check that the database responds and that this role has read access")
	case s.Standby:
		d.find("server", doctor.Failing, "PostgreSQL "+s.Version+" is a standby and accepts no writes",
			"point DATABASE_URL at the primary, or list all hosts with target_session_attrs=read-write")
	default:
		d.find("server", doctor.Healthy, "PostgreSQL "+s.Version+", primary", "")
	}
}

// notify checks that a notification arrives over the type of connection that pods use.
func (d *connection) notify(ctx context.Context) {
	if d.config.Options.DirectURL == "off" {
		d.find("notify", doctor.Healthy, "disabled by TRAPEZE_DATABASE_DIRECT_URL: pods only poll, every "+d.config.Options.PollInterval.String(), "")
		return
	}
	took, err := d.echo(ctx)
	if err != nil {
		do := "check that TRAPEZE_DATABASE_DIRECT_URL reaches PostgreSQL directly, without a pooler"
		if d.config.Options.DirectURL == "" {
			do = "behind a transaction pooler, set TRAPEZE_DATABASE_DIRECT_URL to PostgreSQL's own address, or to off"
		}
		d.find("notify", doctor.Failing, "a notification did not arrive, jobs wait for the next poll: "+text.OneLine(err), do)
		return
	}
	d.find("notify", doctor.Healthy, "a notification arrived after "+text.Round(took).String(), "")
}

// echo measures how long this process takes to receive its own notification.
func (d *connection) echo(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := dburl.Connect(ctx, d.config.MigrationURL())
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	channel, sent := d.config.Options.Schema+"_doctor", rand.Text()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := d.pool.Exec(ctx, `select pg_notify($1, $2)`, channel, sent); err != nil {
		return 0, err
	}
	for {
		got, err := conn.WaitForNotification(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return 0, errors.New("none within 3s")
		case err != nil:
			return 0, err
		case got.Payload == sent:
			return time.Since(began), nil
		}
	}
}
