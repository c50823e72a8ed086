package api_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A failed job and its on-failure job link to each other. Planned failure steps are not listed as next steps.
func TestDashboardFailureJobLinks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	failed := p.put(raw("fail"), runner.OnFailure(raw("echo")))
	p.until(failed, job.Failed)
	_, page := p.get(p.url + "jobs/" + formatID(failed))
	is.True(strings.Contains(visibleText(page), "On failure\n#1000"))
	p.until(1000, job.Succeeded)
	_, page = p.get(p.url + "jobs/1000")
	is.True(strings.Contains(visibleText(page), "Parent\n#"+formatID(failed)))
	waits := p.put(runner.Chain(raw("wait"), raw("echo")), runner.OnFailure(raw("echo")))
	p.until(waits, job.Running)
	_, page = p.get(p.url + "pipelines/" + formatID(waits))
	is.Equal(strings.Count(visibleText(page), "planned"), 2) // once in the drawing and once in the table
}
