//go:build long

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// roleOfTheGuide creates a role with the grants in a section of docs/grants.md, and returns a URL that connects as that role.
func roleOfTheGuide(t *testing.T, url, section, name string) string {
	t.Helper()
	is := is.New(t)
	page, err := os.ReadFile("../docs/grants.md")
	is.NoErr(err)
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	is.True(found)
	_, sql, _ := strings.Cut(text, "```sql\n")
	sql, _, _ = strings.Cut(sql, "\n```")
	role, as := pgtest.Role(t, url)
	_, err = pgtest.Connect(t, url).Exec(t.Context(), strings.ReplaceAll(sql, name, role))
	is.NoErr(err)
	return as
}

// checks returns the names of the checks that doctor makes.
func checks(db database) (names []string) {
	for _, found := range regexp.MustCompile(`"check": ?"([^"]+)"`).FindAllStringSubmatch(db.run("doctor", "--json").out, -1) {
		names = append(names, found[1])
	}
	return names
}

// Each command works as the role that runs jobs. As the roles that submit, it works or fails with a missing permission.
func TestEveryCommandAsEachRole(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	db := database{t, url}
	serve(t, url, nil)
	id := db.enqueue("demo.sleep", "--args", `{"ms":1}`, "--chain", `[{"kind":"demo.noop"}]`, "--wait")
	db.ok("cron", "set", "nightly", "0 3 * * *", "demo.noop")
	commands := []string{"jobs", "job " + id, "events --job " + id, "pipelines", "pipeline " + id, "ps", "lanes", "pods", "audit", "cron ls",
		"cron show nightly", "retention ls", "export jobs", "export events", "migrate status", "kinds", "failures", "stats", "doctor", "enqueue demo.noop",
		"lane set mail slots=1", "limit set --lane mail --slots 2", "limit ls", "limit usage", "limit rm --lane mail", "drain mail", "undrain mail", "lane rm mail", "retention set demo.noop succeeded 1h", "cron set weekly 0.3.*.*.1 demo.noop",
		"cron pause weekly", "cron resume weekly", "cron rm weekly", "retry " + id, "cancel " + id}
	for _, one := range []struct {
		section, name string
		all           bool
	}{
		{"A role that runs jobs", "trapeze_app", true},
		{"A role that submits only", "trapeze_submit", false},
		{"A producer in SQL", "trapeze_producer", false},
	} {
		as := database{t, roleOfTheGuide(t, url, one.section, one.name)}
		if one.all {
			is.New(t).Equal(checks(as), checks(db)) // no check is left out
		}
		for _, command := range commands {
			args := strings.Fields(command)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "0.3.*.*.1", "0 3 * * 1")
			}
			said := as.run(args...)
			text := said.out + said.err
			switch denied := strings.Contains(text, "permission denied") || strings.Contains(text, "42501"); {
			case denied && one.all:
				t.Errorf("%s as %s: a grant is missing in docs/grants.md: %s", command, one.name, text)
			case said.code != 0 && !denied && !strings.Contains(text, " succeeded"): // such a job can be neither retried nor cancelled
				t.Errorf("%s as %s: exit code %d: %s", command, one.name, said.code, text)
			}
		}
	}
}
