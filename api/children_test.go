package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestListMatchesBulkCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "spread", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.FanOut(runner.Raw{Name: "wait"}, runner.Raw{Name: "wait"}), nil
		})
	})
	parent := h.submit(`{"kind":"spread","subject":"s"}`)
	h.until(parent, job.Waiting)
	alone := h.submit(`{"kind":"wait"}`)
	pgtest.Wait(t, "both children run", func() bool {
		list, _ := h.send("GET", "/jobs?state=running&kind=wait", "").body["jobs"].([]any)
		return len(list) == 3
	})

	list := func(query string) (ids []string) {
		a := h.send("GET", "/jobs?"+query, "")
		is.Equal(a.status, http.StatusOK)
		for _, one := range a.body["jobs"].([]any) {
			ids = append(ids, one.(map[string]any)["id"].(string))
		}
		slices.Sort(ids)
		return ids
	}
	page := func(query string) []string {
		root, err := html.Parse(strings.NewReader(h.send("GET", "/ui/jobs?"+query, "").text))
		is.NoErr(err)
		ids, _ := listed(root)
		slices.Sort(ids)
		return ids
	}
	is.Equal(list(""), []string{parent, alone}) // an unfiltered list omits children
	is.Equal(page(""), list(""))
	is.Equal(len(list("children=true")), 4)

	for query, want := range map[string]int{"kind=wait": 3, "state=running": 3, "lane=default": 4, "since=1h": 4, "pipeline=" + parent: 3,
		"parent=" + parent: 2, "subject=s": 1, "kind=wait&children=true": 3, "kind=wait&children=false": 1, "pipeline=" + parent + "&children=false": 1} {
		shown := list(query)
		is.Equal(len(shown), want)
		asked, err := url.ParseQuery(query)
		is.NoErr(err)
		filter := map[string]any{}
		for name := range asked {
			filter[name] = asked.Get(name)
		}
		if asked.Has("state") {
			filter["state"] = asked["state"]
		}
		if asked.Has("children") {
			filter["children"] = asked.Get("children") == "true"
		} else {
			is.Equal(page(query), shown)
		}
		body, err := json.Marshal(map[string]any{"filter": filter, "dry_run": true})
		is.NoErr(err)
		a := h.send("POST", "/admin/workers/jobs/cancel", string(body))
		is.Equal(a.status, http.StatusOK)
		var sample []string
		for _, id := range a.body["sample"].([]any) {
			sample = append(sample, id.(string))
		}
		slices.Sort(sample)
		is.Equal(sample, shown) // the preview selects the same jobs as the list
	}
	is.Equal(h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"children":true},"dry_run":true}`).status, http.StatusBadRequest) // this filter would match every job

	a := h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"kind":"wait","children":false}}`)
	is.Equal(a.body["done"], 1.0)
	h.until(alone, job.Cancelled)
	is.Equal(len(list("state=running")), 2) // the children are still running
}
