package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

// strangers returns a host with an administrator, root, and two submitters, ana and bob, who cannot see each other's jobs.
func strangers(t *testing.T) *host {
	return newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"submitter"}, "bob": {"submitter"}})})
}

func TestForeignJobLikeMissingJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	bobs := h.send("POST", "/jobs", `{"kind":"echo","delay":3600}`, "X-Who", "bob").body["id"].(string)
	const none = "987654321"
	for _, route := range api.Routes() {
		if !strings.Contains(route.Path, "jobs/:id") && !strings.Contains(route.Path, "pipelines/:id") || strings.HasPrefix(route.Path, "/admin") {
			continue
		}
		tell := func(id string) string {
			a := h.send(route.Method, strings.Replace(route.Path, ":id", id, 1), "", "X-Who", "ana")
			delete(a.body, "request_id")
			a.body["detail"] = strings.ReplaceAll(a.body["detail"].(string), id, "ID")
			return http.StatusText(a.status) + " " + a.body["code"].(string) + " " + a.body["message"].(string) + " " + a.body["detail"].(string)
		}
		if route.Needs == "jobs:approve" {
			continue // a submitter gets 403 for every ID
		}
		is.Equal(tell(bobs), tell(none)) // the response does not reveal which IDs exist
	}
}

func TestIdempotencyKeyOfTwoSubmitters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	submit := func(who, body, key string) answer {
		return h.send("POST", "/jobs", body, "X-Who", who, "Idempotency-Key", key)
	}
	const body = `{"kind":"echo","delay":3600}`
	bobs := submit("bob", body, "nightly")
	is.Equal(submit("bob", body, "nightly").body["id"], bobs.body["id"]) // the same user and key yield the same job
	anas := submit("ana", body, "nightly")
	is.Equal(anas.status, http.StatusAccepted)
	is.True(anas.body["id"] != bobs.body["id"]) // another user's key is independent of bob's
	is.Equal(anas.body["duplicate"], false)     // ana's job was created
	is.Equal(submit("ana", `{"kind":"wait"}`, "nightly").body["code"], "idempotency_key_reused")
	is.Equal(submit("ana", `{"kind":"wait","delay":3600}`, strings.Repeat("k", 500)).status, http.StatusAccepted) // the longest valid key
}

func TestUniqueKeyHeldByOther(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	const body = `{"kind":"echo","delay":3600,"unique_key":"co2/2025"}`
	bobs := h.send("POST", "/jobs", body, "X-Who", "bob")
	is.Equal(bobs.status, http.StatusAccepted)
	is.Equal(h.send("POST", "/jobs", body, "X-Who", "bob").body["duplicate"], true)
	for range 2 { // the second request repeats the idempotency key
		anas := h.send("POST", "/jobs", body, "X-Who", "ana", "Idempotency-Key", "k")
		is.Equal(anas.status, http.StatusConflict)
		is.Equal(anas.body["code"], "unique_key_held")
		is.Equal(anas.body["id"], nil) // neither the ID nor the state of bob's job is shown
	}
	roots := h.send("POST", "/jobs", body, "X-Who", "root")
	is.Equal(roots.body["id"], bobs.body["id"]) // root may see the job, so the response includes its ID
}
