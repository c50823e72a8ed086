//go:build long

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// The read-only role in docs/grants.md must be able to run all commands that only read, and no others.
func TestGuideReadRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	db := database{t, url}
	serve(t, url, nil)
	id := db.enqueue("demo.sleep", "--args", `{"ms":1}`, "--chain", `[{"kind":"demo.noop"}]`, "--wait")
	db.ok("cron", "set", "nightly", "0 3 * * *", "demo.noop")

	page, err := os.ReadFile("../docs/grants.md")
	is.NoErr(err)
	_, section, found := strings.Cut(string(page), "\n## A role that reads only\n")
	is.True(found)
	_, sql, _ := strings.Cut(section, "```sql\n")
	sql, _, _ = strings.Cut(sql, "\n```")
	role, as := pgtest.Role(t, url)
	owner := pgtest.Connect(t, url)
	_, err = owner.Exec(t.Context(), strings.ReplaceAll(sql, "trapeze_read", role))
	is.NoErr(err)

	reader := database{t, as}
	reads := []string{"jobs", "job " + id, "events --job " + id, "pipelines", "pipeline " + id, "ps", "lanes", "pods", "audit", "cron ls", "cron show nightly",
		"retention ls", "export jobs", "export events", "migrate status", "doctor"}
	for _, command := range reads {
		said := reader.run(strings.Fields(command)...)
		if said.code != 0 || strings.Contains(said.out+said.err, "permission denied") {
			t.Errorf("%s: exit code %d: %s%s", command, said.code, said.out, said.err)
		}
	}
	for _, command := range []string{"enqueue demo.noop", "cancel " + id, "pause", "lane set mail slots=1", "cron rm nightly", "erase --subject s --yes"} {
		said := reader.run(strings.Fields(command)...)
		if said.code == 0 {
			t.Errorf("%s: the role may only read", command)
		}
	}
	_, err = owner.Exec(t.Context(), "revoke select on trapeze.jobs from "+role)
	is.NoErr(err)
	is.True(reader.run("jobs").code != 0) // every permission is needed
	_, err = owner.Exec(t.Context(), "grant select on trapeze.jobs to "+role+"; revoke select on sequence trapeze.job_ids from "+role)
	is.NoErr(err)
	is.True(strings.Contains(reader.run("doctor", "--json").out, "permission denied for sequence job_ids"))
}
