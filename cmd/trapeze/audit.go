package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store"
)

func newAuditCommand() *cobra.Command {
	var f store.AuditFilter
	c := &cobra.Command{
		Use:   "audit",
		Short: "List what operators did, or were refused, newest first",
		Long: `List what operators did, or were refused, newest first: who, from where, to what, and why. It is kept for ever, and only ever
added to. --before goes on after the last row of a list.`,
		Example: `  trapeze audit
  trapeze audit --target "job 4711"
  trapeze audit --actor ana --json | jq -c 'select(.allowed | not)'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Before < 0 {
				return usage("--limit %d, --before %d: want at least 1, and an id", f.Limit, f.Before)
			}
			from, err := reach(c)
			if err != nil {
				return err
			}
			defer from.Close()
			return listAudit(c, from, f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.Actor, "actor", "", "only what this one did")
	flags.StringVar(&f.Action, "action", "", "only this action, such as job.cancel or lane.set")
	flags.StringVar(&f.Target, "target", "", `only what was done to this, such as "job 4711" or "lane default"`)
	flags.Int64Var(&f.Before, "before", 0, "only rows with smaller ids")
	flags.IntVar(&f.Limit, "limit", 50, "at most so many")
	return c
}

// listAudit prints up to f.Limit rows, page by page.
func listAudit(c *cobra.Command, from *server, f store.AuditFilter) error {
	var rows [][]string
	for left := f.Limit; left > 0; {
		f.Limit = min(left, 1000)
		list, err := from.Audit(c.Context(), f)
		if err != nil {
			return err
		}
		for _, r := range list {
			if wantsJSON(c) {
				if err := printJSON(c, r); err != nil {
					return err
				}
			}
			rows = append(rows, auditCells(r))
			f.Before = r.ID
		}
		if len(list) < f.Limit {
			break
		}
		left -= len(list)
	}
	if wantsJSON(c) {
		return nil
	}
	return printTable(c, "ID AT ACTOR ACTION TARGET RESULT FROM WHY CHANGE", rows)
}

func auditCells(r store.AuditRow) []string {
	result := "done"
	if !r.Allowed {
		result = "refused"
	}
	return []string{strconv.FormatInt(r.ID, 10), clock(&r.At), r.Actor, r.Action, r.Target, result, r.Source, short(r.Reason, 40), short(change(r), 60)}
}

// change shows what was before and after a deed, as far as somebody wrote it down.
func change(r store.AuditRow) string {
	var parts []string
	for _, raw := range []string{string(r.Before), string(r.After)} {
		if raw != "" && raw != "null" {
			parts = append(parts, raw)
		}
	}
	return strings.Join(parts, " → ")
}
