package api_test

import (
	"context"
	"html"
	"net/http"
	"regexp"
	"strconv"
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

func TestArgumentsAndResultDownload(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	const secret = "47110815"
	id := p.put(runner.Raw{Name: "echo", JSON: []byte(`{"password":"` + secret + `","n":12345678901234567890}`)}, runner.Submitter("ana"))
	p.until(id, job.Succeeded)
	for _, part := range []string{"args", "result"} {
		address := p.url + "jobs/" + formatID(id) + "/" + part
		response, whole := p.raw(address, "X-Name", "ana", "X-Role", "submitter")
		is.Equal(response.StatusCode, http.StatusOK)
		is.Equal(response.Header.Get("Content-Type"), "application/json")
		is.Equal(response.Header.Get("Content-Disposition"), `attachment; filename="job-`+formatID(id)+"-"+part+`.json"`)
		is.Equal(response.Header.Get("Cache-Control"), "no-store")
		is.True(strings.Contains(whole, secret))
		if part == "args" {
			is.True(strings.Contains(whole, "12345678901234567890")) // no digit is rounded
		}
		_, masked := p.raw(address, "X-Name", "ida", "X-Role", "operator")
		is.True(!strings.Contains(masked, secret))
		response, _ = p.raw(address, "X-Name", "eve", "X-Role", "submitter")
		is.Equal(response.StatusCode, http.StatusNotFound) // another principal's job
		_, _ = p.raw(address, "X-Name", "bob", "X-Role", access.PlatformAdmin)
	}
	trail, err := admin.AuditTrail(context.Background(), inside.Of(p.Runner).Store, admin.AuditFilter{Actor: "bob", Action: "job.read_args", Limit: 9})
	is.NoErr(err)
	is.Equal(len(trail), 1) // reading another principal's secrets is audited
}

func TestTimesWithoutBrowserScripts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	id := p.put(raw("echo"), runner.Submitter("ana"))
	p.until(id, job.Succeeded)
	j, err := p.GetJob(t.Context(), id)
	is.NoErr(err)
	_, page := p.raw(p.url+"jobs/"+formatID(id), "X-Name", "bob", "X-Role", "operator")
	at := j.CreatedAt.UTC()
	is.True(strings.Contains(page, `title="`+at.Format("2006-01-02 15:04:05.000 UTC")+`">`+at.Format("2006-01-02 15:04:05 UTC")+"</time>"))
}

func TestDashboardFanOutChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const children = 60
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"ana": {"submitter"}, "bob": {"submitter"}})}, func(r *runner.Runner) {
		runner.HandleRaw(r, "spread", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			var list []job.Args
			for range children {
				list = append(list, raw("echo"))
			}
			return runner.FanOut(list...).Join(raw("echo")), nil
		})
	})
	ana := []string{"X-Who", "ana"}
	id := h.send("POST", "/jobs", `{"kind":"spread"}`, ana...).body["id"].(string)
	pgtest.Wait(t, "the pipeline is over", func() bool {
		return h.send("GET", "/pipelines/"+id, "", ana...).body["status"] == "succeeded"
	})
	page := h.send("GET", "/ui/pipelines/"+id, "", ana...).text
	is.True(strings.Contains(page, "<title>spread · Pipeline "+id+" · Trapeze</title>"))
	is.True(strings.Contains(page, `jobs/`+id+`/children">60 children</a>`))
	is.True(strings.Contains(page, `jobs/`+id+`/children?state=succeeded">60 succeeded</a>`))
	seen, next := map[string]bool{}, "jobs/"+id+"/children"
	for pages := 0; next != ""; pages++ {
		is.True(pages < 3)
		list := h.send("GET", "/ui/"+next, "", ana...).text
		for _, row := range regexp.MustCompile(`<tr id="job-\d+"><td data-l="No." class="r num">(\d+)</td>`).FindAllStringSubmatch(list, -1) {
			is.Equal(row[1], strconv.Itoa(len(seen)+1)) // in fan-out order, without the job that joins the children
			seen[row[1]] = true
		}
		next = ""
		if found := regexp.MustCompile(`href="\.\./\.\./(jobs/[^"]*)" rel="next"`).FindStringSubmatch(list); found != nil {
			next = html.UnescapeString(found[1])
		}
	}
	is.Equal(len(seen), children)
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+id+"/children?state=failed", "", ana...).text, "No children match."))
	is.Equal(h.send("GET", "/ui/jobs/"+id+"/children?state=x", "", ana...).status, http.StatusBadRequest)
	is.Equal(h.send("GET", "/ui/jobs/"+id+"/children", "", "X-Who", "bob").status, http.StatusNotFound) // another submitter's pipeline
}
