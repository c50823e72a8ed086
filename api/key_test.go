package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// The key of a job can be set, read and filtered by. Steps inherit it, and a step can have another one or none.
func TestSubmittedKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("ana", "platform_admin")})
	first := h.submit(`{"kind":"echo","key":"tenant-42","chain":[{"kind":"echo"},{"kind":"echo","key":"tenant-43"},{"kind":"echo","key":""}]}`)
	later := h.submit(`{"kind":"echo","key":"tenant-42","subject":"s","delay":3600}`)
	other := h.submit(`{"kind":"echo","key":"tenant-43","delay":3600}`)
	none := h.submit(`{"kind":"echo","delay":3600}`)
	lone := h.submit(`{"kind":"echo","key":"tenant-44","subject":"lone"}`)
	h.until(first, job.Succeeded)
	h.until(lone, job.Succeeded)
	var tree map[string]any
	pgtest.Wait(t, "the pipeline has succeeded", func() bool {
		tree = h.send("GET", "/pipelines/"+first, "").body
		return tree["status"] == "succeeded"
	})
	var steps []any
	for _, j := range tree["jobs"].([]any) {
		steps = append(steps, j.(map[string]any)["key"])
	}
	is.Equal(steps, []any{"tenant-42", "tenant-42", "tenant-43", ""})
	is.Equal(h.send("GET", "/jobs/"+none, "").body["key"], "")

	count := func(query string) int {
		t.Helper()
		a := h.send("GET", "/jobs?"+query, "")
		is.Equal(a.status, http.StatusOK)
		list := a.body["jobs"].([]any)
		for _, j := range list {
			is.True(strings.Contains(query, "key="+j.(map[string]any)["key"].(string)))
		}
		return len(list)
	}
	is.Equal(count("key=tenant-42"), 3)
	is.Equal(count("key=tenant-43&state=pending"), 1)
	is.Equal(count("key=tenant-42&state=succeeded"), 2)
	is.Equal(count("key=tenant-42&pipeline="+first), 2)
	is.Equal(count("key=tenant-44&current=true"), 1)
	is.Equal(count("key=tenant-42&current=true"), 0)
	is.Equal(count("key=tenant-42&search=ana"), 3)
	is.Equal(count("key=tenant-42&search=ana&state=pending"), 1)
	is.Equal(count("key=nobody"), 0)

	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+later, "").text, `jobs?key=tenant-42&amp;since=all`))
	page := h.send("GET", "/ui/jobs?key=tenant-42", "").text
	is.True(strings.Contains(page, "#"+later) && strings.Contains(page, "#"+first))
	is.True(!strings.Contains(page, "#"+other) && !strings.Contains(page, "#"+none))
	is.True(strings.Contains(h.send("GET", "/ui/jobs/new?like="+later, "").text, `name="key" value="tenant-42"`))

	done := h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"key":"tenant-42"}}`)
	is.Equal([]any{done.status, done.body["done"]}, []any{http.StatusOK, 1.0})
	is.Equal(h.send("GET", "/jobs/"+later, "").body["state"], "cancelled")
	is.Equal(h.send("GET", "/jobs/"+other, "").body["state"], "pending")
	is.Equal(count("key=tenant-42&state=cancelled"), 1)
	again := h.send("POST", "/admin/workers/jobs/retry", `{"filter":{"key":"tenant-43","state":["cancelled"]}}`)
	is.Equal(again.body["done"], 0.0)
	again = h.send("POST", "/admin/workers/jobs/retry", `{"filter":{"key":"tenant-42","state":["cancelled"]}}`)
	is.Equal(again.body["done"], 1.0)
	is.Equal(h.until(later, job.Succeeded).body["key"], "tenant-42")
	for _, key := range []string{"*", strings.Repeat("k", 201)} {
		is.Equal(h.send("POST", "/jobs", `{"kind":"echo","key":"`+key+`"}`).status, http.StatusBadRequest)
	}
}
