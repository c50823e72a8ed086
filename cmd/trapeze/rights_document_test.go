package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
)

func TestOperatingGuidePermissionTable(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	head, below := "| permission |", "|---|"
	for _, role := range access.BuiltIn {
		head, below = head+" "+role.Name+" |", below+"---|"
	}
	rows := []string{head, below}
	for _, what := range access.Permissions {
		row := fmt.Sprintf("| `%s` |", what)
		for _, role := range access.BuiltIn {
			whose, has := access.RightsOf(role)[what]
			if !has {
				whose = "–"
			}
			row += fmt.Sprintf(" %s |", whose)
		}
		rows = append(rows, row)
	}
	_, who, found := strings.Cut(read(t, "../../docs/operating.md"), "\n## Permissions\n")
	is.True(found)
	who, _, _ = strings.Cut(who, "\n## ")
	is.True(strings.Contains(who, "\n"+strings.Join(rows, "\n")+"\n")) // the document contains the table derived from the roles
}
