package app

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/text"
)

func newAuditCommand() *cobra.Command {
	var actor, action, target string
	var before int64
	var limit int
	c := &cobra.Command{
		Use:   "audit",
		Short: "List audit entries: actions of operators and their results",
		Long: `List audit entries, newest first: actor, action, target, result, source address and reason. Refused actions are included. The audit
log is append-only and kept forever. For the next page, pass the last id of the list to --before.`,
		Example: `  trapeze audit
  trapeze audit --target "job 4711"
  trapeze audit --actor ana --json | jq -c 'select(.allowed | not)'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 || before < 0 {
				return cli.Usage("--limit %d, --before %d: want a limit of at least 1 and the id of an entry", limit, before)
			}
			query := cli.QueryOf("actor", actor, "action", action, "target", target, "limit", strconv.Itoa(limit))
			if before > 0 {
				query.Set("before", strconv.FormatInt(before, 10))
			}
			return onClient(c, func(at *cli.Client) error {
				rows := cli.ListAll[admin.AuditRow](c.Context(), at, "/admin/audit", "audit", query)
				return cli.List(c, "ID AT ACTOR ACTION TARGET RESULT FROM WHY CHANGE", rows, auditCells)
			})
		},
	}
	flags := c.Flags()
	flags.StringVar(&actor, "actor", "", "only actions of this principal")
	flags.StringVar(&action, "action", "", "only this action, such as job.cancel or lane.set")
	flags.StringVar(&target, "target", "", `only actions on this target, such as "job 4711" or "lane default"`)
	flags.Int64Var(&before, "before", 0, "only entries with smaller ids")
	flags.IntVar(&limit, "limit", 50, "maximum number of rows")
	return c
}

func auditCells(r admin.AuditRow) []string {
	result := "done"
	if !r.Allowed {
		result = "refused"
	}
	return []string{strconv.FormatInt(r.ID, 10), text.Clock(&r.At), r.Actor, r.Action, r.Target, result, r.Source, text.Short(r.Reason, 40), text.Short(change(r), 60)}
}

// change shows the state before and after a command, as recorded in the audit entry.
func change(r admin.AuditRow) string {
	var parts []string
	for _, raw := range []string{string(r.Before), string(r.After)} {
		if raw != "" && raw != "null" {
			parts = append(parts, raw)
		}
	}
	return strings.Join(parts, " → ")
}
