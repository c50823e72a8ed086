package api_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestNewJobFormPrefilledArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	const secret = "47110815"
	id := p.put(runner.Raw{Name: "echo", JSON: []byte(`{"code":"` + secret + `"}`)}, runner.Submitter("ana"))
	p.until(id, job.Succeeded)
	for _, template := range []string{"?kind=echo", "?like=" + formatID(id)} {
		filled := func(name, role string) string {
			response, page := p.get(p.url+"jobs/new"+template, "X-Name", name, "X-Role", role)
			is.Equal(response.StatusCode, http.StatusOK)
			return field(form(page, "POST jobs"), "args")
		}
		is.True(strings.Contains(filled("bob", access.PlatformAdmin), secret))
		trail, err := admin.AuditTrail(t.Context(), inside.Of(p.Runner).Store, admin.AuditFilter{Actor: "bob", Action: "job.read_args", Limit: 1})
		is.NoErr(err)
		is.Equal(len(trail), 1) // reading another principal's secrets is audited
		is.Equal(strings.TrimSpace(filled("ida", "operator")), "{}")
		is.True(strings.Contains(filled("ana", "submitter"), secret)) // ana's own job
	}
	response, _ := p.get(p.url+"jobs/new?like="+formatID(id), "X-Name", "eve", "X-Role", "submitter")
	is.Equal(response.StatusCode, http.StatusNotFound) // another principal's job
	_, page := p.get(p.url+"jobs/new?kind=echo", "X-Name", "eve", "X-Role", "submitter")
	is.Equal(strings.TrimSpace(field(form(page, "POST jobs"), "args")), "{}") // the job cannot be found by its kind either
	is.True(!strings.Contains(visibleText(page), "#"+formatID(id)))
	response, _ = p.get(p.url+"jobs/new", "X-Name", "eve", "X-Role", "viewer")
	is.Equal(response.StatusCode, http.StatusForbidden)
}

func TestDashboardRetryOfFailedChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	heal := make(chan struct{})
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"submitter"}, "bob": {"submitter"}, "vic": {"viewer"}})}, func(r *runner.Runner) {
		runner.HandleRaw(r, "sick", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			select {
			case <-heal:
				return nil, nil
			default:
				return nil, errors.New("not yet")
			}
		})
		runner.HandleRaw(r, "spread", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.FanOut(raw("sick"), raw("sick"), raw("echo")).Join(raw("echo")), nil
		})
		runner.HandleRaw(r, "unfinished", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.FanOut(raw("sick"), raw("wait")), nil
		})
	})
	ana := []string{"X-Who", "ana"}
	id := h.send("POST", "/jobs", `{"kind":"spread"}`, ana...).body["id"].(string)
	children := "/pipelines/" + id + "/children/retry"
	pgtest.Wait(t, "the pipeline is partial", func() bool {
		return h.send("GET", "/pipelines/"+id, "", ana...).body["status"] == "partial"
	})
	is.True(strings.Contains(h.send("GET", "/ui/pipelines/"+id, "", ana...).text, `data-send="POST pipelines/`+id+`/children/retry"`))
	is.True(!strings.Contains(h.send("GET", "/ui/pipelines/"+id, "", "X-Who", "vic").text, "children/retry"))
	is.Equal(h.send("POST", children, "", "X-Who", "bob").status, http.StatusNotFound) // another submitter's pipeline
	is.Equal(h.send("POST", children, "", "X-Who", "vic").status, http.StatusForbidden)
	child := h.send("GET", "/jobs?state=failed&pipeline="+id, "", ana...).body["jobs"].([]any)[0].(map[string]any)["id"].(string)
	const warning = "the step after the children does not run again"
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+child, "", ana...).text, warning)) // the warning is shown before the retry is sent
	other := h.send("POST", "/jobs", `{"kind":"sick"}`, ana...).body["id"].(string)
	h.untilAs(other, job.Failed, ana...)
	is.True(!strings.Contains(h.send("GET", "/ui/jobs/"+other, "", ana...).text, warning)) // no fan-out was waiting for this job
	open := h.send("POST", "/jobs", `{"kind":"unfinished"}`, ana...).body["id"].(string)
	pgtest.Wait(t, "a child of a fan-out that still waits has failed", func() bool {
		for _, one := range h.send("GET", "/jobs?state=failed&pipeline="+open, "", ana...).body["jobs"].([]any) {
			child = one.(map[string]any)["id"].(string)
			return true
		}
		return false
	})
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+child, "", ana...).text, "Job "+open+" still waits for it"))
	close(heal)
	did := h.send("POST", children, "", ana...)
	is.Equal(did.status, http.StatusAccepted)
	is.Equal([]any{did.body["retried"], did.body["skipped"], did.body["more"]}, []any{2.0, 0.0, false})
	pgtest.Wait(t, "the children have succeeded", func() bool {
		return len(h.send("GET", "/jobs?state=succeeded&kind=sick&pipeline="+id, "", ana...).body["jobs"].([]any)) == 2
	})
	is.Equal(h.send("POST", children, "", ana...).body["code"], "not_failed") // no child is in the failed state anymore
	alone := h.send("POST", "/jobs", `{"kind":"spread","args":{}}`, ana...).body["id"].(string)
	h.untilAs(alone, job.Succeeded, ana...)
	is.Equal(h.send("POST", "/pipelines/"+alone+"/children/retry", "", ana...).body["code"], "not_failed")
	is.Equal(h.send("POST", "/pipelines/999999/children/retry", "", "X-Who", "root").status, http.StatusNotFound)
}

func TestDashboardApprovalAndRejection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	id := p.put(raw("echo"), runner.NeedsApproval(), runner.Submitter("ana"))
	approve, cancel := "POST jobs/"+formatID(id)+"/approve?epoch=1", "POST jobs/"+formatID(id)+"/cancel"
	for _, address := range []string{p.url, p.url + "jobs/" + formatID(id)} {
		_, page := p.get(address, "X-Name", "bob", "X-Role", "operator")
		list := offered(page)
		is.True(slices.Contains(list, approve))
		is.Equal(strings.Count(strings.Join(list, "\n"), cancel+"?epoch=1"), 1)
		is.Equal(strings.Count(strings.Join(list, "\n"), cancel), 1) // the Reject button, with no second button that cancels the job
		is.True(strings.Contains(visibleText(page), "Reject"))
	}
	_, page := p.get(p.url+"jobs/"+formatID(id), "X-Name", "ana", "X-Role", "submitter")
	is.Equal(offered(page), []string{cancel}) // the submitter can withdraw the job
	is.True(!strings.Contains(visibleText(page), "Reject"))
	is.True(strings.Contains(visibleText(page), "Submit a copy"))
}
