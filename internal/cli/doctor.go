package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/text"
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
