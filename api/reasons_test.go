package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func failingKinds(r *runner.Runner) {
	runner.HandleRaw(r, "declined", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return nil, job.Code("card_declined", errors.New("no"))
	})
	runner.HandleRaw(r, "panics", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { panic("no") })
}

func TestJobReasonErrorFilters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{}, failingKinds)
	declined, panics, fine := h.submit(`{"kind":"declined"}`), h.submit(`{"kind":"panics"}`), h.submit(`{"kind":"echo"}`)
	waits := h.submit(`{"kind":"echo","delay":3600}`)
	j := h.until(declined, job.Failed).body
	is.Equal(j["error_class"], "error")
	is.Equal(j["error_code"], "card_declined")
	is.Equal(h.until(panics, job.Failed).body["error_class"], "panic")
	is.Equal(h.until(fine, job.Succeeded).body["error_class"], nil)
	for query, want := range map[string][]string{
		"error_class=panic": {panics}, "error_code=card_declined": {declined}, "reason=error": {panics, declined}, "reason=scheduled": {waits},
		"reason=error&error_class=error": {declined}, "error_class=panic&kind=declined": {}, "error_class=panic&state=succeeded": {}, "error_code=23505": {},
	} {
		ids := []string{}
		for _, one := range h.send("GET", "/jobs?"+query, "").body["jobs"].([]any) {
			ids = append(ids, one.(map[string]any)["id"].(string))
		}
		is.Equal(len(ids), len(want)) // number of matches for the query
		for _, id := range want {
			is.True(strings.Contains(strings.Join(ids, " "), id))
		}
	}
	for _, wrong := range []string{"reason=happy", "error_class=happy", "error_code=a+b", "error_code=" + strings.Repeat("x", 65)} {
		is.Equal(h.send("GET", "/jobs?"+wrong, "").status, http.StatusBadRequest) // an error, not an empty list
	}

	many := h.send("POST", "/admin/workers/jobs/retry", `{"filter":{"error_code":"card_declined"},"dry_run":true}`).body
	is.Equal(many["matched"], 1.0)
	is.Equal(many["sample"], []any{declined})
	many = h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"reason":"timeout"},"dry_run":true}`).body
	is.Equal(many["matched"], 0.0) // the pending job has a different reason
	is.Equal(h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"error_class":"happy"}}`).status, http.StatusBadRequest)
}

func TestDashboardReasonErrorFilters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	failed, cancelled := p.put(raw("fail")), p.put(raw("wait"))
	p.until(failed, job.Failed)
	_, err := p.Admin("me").ForceCancel(t.Context(), cancelled)
	is.NoErr(err)
	for query, want := range map[string][]string{
		"reason=force_cancelled": {formatID(cancelled)}, "error_class=error": {formatID(failed)}, "error_class=panic": nil, "error_code=quota": nil,
	} {
		response, page := p.get(p.url + "jobs?" + query)
		is.Equal(response.StatusCode, http.StatusOK)
		ids, _ := listed(page)
		is.Equal(ids, want) // jobs that match the query
		asked, err := url.ParseQuery(query)
		is.NoErr(err)
		for name, values := range asked { // the form shows the active filter
			shown := ""
			for n := range page.Descendants() {
				if n.Data == "input" && attribute(n, "name") == name {
					shown = attribute(n, "value")
				}
				if n.Data == "option" && attribute(n.Parent, "name") == name {
					for _, a := range n.Attr {
						if a.Key == "selected" {
							shown = attribute(n, "value")
						}
					}
				}
			}
			is.Equal(shown, values[0])
		}
	}
	response, _ := p.get(p.url + "jobs?error_class=happy")
	is.Equal(response.StatusCode, http.StatusBadRequest)
	_, page := p.get(p.url + "jobs/" + formatID(failed))
	links := map[string]bool{}
	for n := range page.Descendants() {
		links[attribute(n, "href")] = true
	}
	is.True(links["./jobs?error_class=error"] || links["../jobs?error_class=error"]) // a failed job links to others with the same error class
}
