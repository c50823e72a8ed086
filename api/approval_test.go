package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// risky makes jobs of the kind hold wait for approval, by the lane of the kind.
func risky(t *testing.T) *host {
	is := is.New(t)
	h := strangers(t)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["hold"]}`, "X-Who", "root").status, http.StatusOK)
	return h
}

func TestNoLaneAndNoChainLeadsAroundAnApproval(t *testing.T) {
	t.Parallel()
	h := risky(t)
	for name, body := range map[string]string{
		"as it is":                        `{"kind":"hold"}`,
		"in another lane":                 `{"kind":"hold","lane":"default"}`,
		"as a later step":                 `{"kind":"echo","chain":[{"kind":"echo"},{"kind":"hold"}]}`,
		"as a later step in another lane": `{"kind":"echo","chain":[{"kind":"hold","lane":"default"}]}`,
		"before a step":                   `{"kind":"hold","lane":"default","chain":[{"kind":"echo"}]}`,
		"in the lane, another kind":       `{"kind":"echo","lane":"risky"}`,
		"a later step in the lane":        `{"kind":"echo","chain":[{"kind":"echo","lane":"risky"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			a := h.send("POST", "/jobs", body, "X-Who", "ana")
			is.Equal(a.status, http.StatusAccepted)
			is.Equal(a.body["state"], "awaiting_approval")
		})
	}
	is := is.New(t)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo","lane":"default","delay":3600,"chain":[{"kind":"echo"}]}`, "X-Who", "ana").body["state"], "pending") // others go
}

func TestARetryIsNoApproval(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := risky(t)
	ana, root := []string{"X-Who", "ana"}, []string{"X-Who", "root"}
	submit := func() string {
		return h.send("POST", "/jobs", `{"kind":"hold","args":{"n":1}}`, ana...).body["id"].(string)
	}
	is.Equal(h.send("PUT", "/admin/roles/keeper", `{"permissions":["jobs:read","jobs:retry","workers:manage"],"scope":"all"}`, root...).status, http.StatusOK)
	never := submit()
	is.Equal(h.send("POST", "/jobs/"+never+"/cancel", "", ana...).status, http.StatusOK)
	for _, path := range []string{"/jobs/", "/pipelines/"} {
		a := h.send("POST", path+never+"/retry", "", ana...)
		is.Equal(a.status, http.StatusForbidden) // it would run without anybody's approval
		is.Equal(a.body["code"], "forbidden")
	}
	is.Equal(h.send("POST", "/admin/workers/jobs/retry", `{"filter":{"kind":"hold","state":["cancelled"]}}`, "X-Who", "keeper").status, http.StatusForbidden)
	is.Equal(h.send("GET", "/jobs/"+never, "", ana...).body["state"], "cancelled")
	is.Equal(h.send("POST", "/jobs/"+never+"/retry", "", root...).status, http.StatusAccepted) // whoever may approve may do so too
	h.send("POST", "/admin/workers/jobs/"+never+"/stop", "", root...)

	approved := submit()
	is.Equal(h.send("POST", "/jobs/"+approved+"/approve", "", root...).status, http.StatusOK)
	h.untilAs(approved, job.Running, ana...)
	is.Equal(h.send("POST", "/admin/workers/jobs/"+approved+"/stop", "", root...).status, http.StatusOK)
	for _, path := range []string{"/jobs/", "/pipelines/"} {
		is.Equal(h.send("POST", path+approved+"/retry", `{"args":{"n":2}}`, ana...).status, http.StatusForbidden) // these were approved by nobody
	}
	is.Equal(h.send("POST", "/jobs/"+approved+"/retry", "", ana...).status, http.StatusAccepted) // those were
}
