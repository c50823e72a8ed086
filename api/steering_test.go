package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestJobCommandsOverHTTP(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("ana", "platform_admin")})
	refused := func(a answer, status int, code string) {
		t.Helper()
		is.Equal(a.status, status)
		is.Equal(a.body["code"], code)
	}

	asks := h.submit(`{"kind":"echo","needs_approval":true}`)
	is.Equal(h.send("GET", "/jobs/"+asks, "").body["state"], "awaiting_approval")
	is.Equal(h.send("POST", "/jobs/"+asks+"/approve", "").status, http.StatusOK)
	refused(h.send("POST", "/jobs/"+asks+"/approve", ""), http.StatusConflict, "not_awaiting_approval")
	h.until(asks, job.Succeeded)
	refused(h.send("POST", "/jobs/"+asks+"/retry", ""), http.StatusConflict, "not_failed")
	refused(h.send("PATCH", "/admin/workers/jobs/"+asks+"/priority", `{"priority":1}`), http.StatusConflict, "already_terminal")

	later := h.submit(`{"kind":"echo","delay":3600}`)
	is.Equal(h.send("PATCH", "/admin/workers/jobs/"+later+"/priority", `{"priority":-100}`).status, http.StatusOK)
	is.Equal(h.send("GET", "/jobs/"+later, "").body["priority"], -100.0)
	refused(h.send("PATCH", "/admin/workers/jobs/"+later+"/priority", `{"priority":101}`), http.StatusUnprocessableEntity, "invalid_request")
	refused(h.send("PATCH", "/admin/workers/jobs/"+later+"/priority", `{}`), http.StatusBadRequest, "invalid_request")
	deleted := h.send("DELETE", "/jobs/"+later, "") // a job that is not running is cancelled, and can be retried
	is.Equal(deleted.status, http.StatusOK)
	is.Equal([]any{deleted.body["state"], deleted.body["deleted"]}, []any{"cancelled", 0.0})
	is.Equal(h.send("GET", "/jobs/"+later, "").body["state"], "cancelled")

	again := h.send("POST", "/jobs/"+later+"/retry", `{"args":{"other":true}}`)
	is.Equal(again.status, http.StatusAccepted)
	is.Equal(again.body["retried"], []any{later})
	is.Equal(h.until(later, job.Succeeded).body["result"], map[string]any{"other": true})
	is.Equal(h.send("GET", "/jobs/"+later, "").body["epoch"], 2.0)

	running := h.submit(`{"kind":"wait"}`)
	h.until(running, job.Running)
	refused(h.send("PATCH", "/admin/workers/jobs/"+running+"/priority", `{"priority":1}`), http.StatusConflict, "not_queued")
	refused(h.send("DELETE", "/jobs/"+running, ""), http.StatusConflict, "not_terminal")
	early := h.send("POST", "/jobs/"+running+"/retry", "")
	refused(early, http.StatusConflict, "not_failed")
	is.Equal(early.body["detail"], "job "+running+" is running: only failed or cancelled jobs can be retried")
	is.Equal(h.send("POST", "/jobs/"+later+"/retry", "").body["detail"], "job "+later+" succeeded, in epoch 2: only failed or cancelled jobs can be retried") // after a lost reply, a client needs the epoch
	refused(h.send("POST", "/jobs/"+running+"/retry", `{"agrs":1}`), http.StatusBadRequest, "invalid_request")
	refused(h.send("POST", "/jobs/"+running+"/retry", `{}`, "Content-Type", "text/plain"), http.StatusUnsupportedMediaType, "unsupported_media_type")

	is.Equal(h.send("DELETE", "/jobs/"+later, "").body["deleted"], 1.0)
	refused(h.send("GET", "/jobs/"+later, ""), http.StatusNotFound, "not_found")
	for _, route := range [][3]string{{"DELETE", "", ""}, {"POST", "/approve", ""}, {"POST", "/retry", ""}, {"POST", "/complete", `{"token":"x"}`}} {
		refused(h.send(route[0], "/jobs/999999"+route[1], route[2]), http.StatusNotFound, "not_found")
	}
	refused(h.send("PATCH", "/admin/workers/jobs/999999/priority", `{"priority":1}`), http.StatusNotFound, "not_found")
}

func TestDeferredJobOverHTTP(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"defer"}`)
	h.until(id, job.Waiting)
	wrong := h.send("POST", "/jobs/"+id+"/complete", `{"token":"guess"}`)
	is.Equal(wrong.status, http.StatusForbidden)
	is.Equal(wrong.body["code"], "wrong_token")
	token := <-h.tokens
	half := h.send("POST", "/jobs/"+id+"/complete", `{"token":"`+token+`","part":"a","result":{"rows":12}}`)
	is.Equal(half.status, http.StatusOK)
	is.Equal(half.body["state"], "waiting")
	is.Equal(h.send("POST", "/jobs/"+id+"/complete", `{"token":"`+token+`","part":"b","error":"no disk"}`).status, http.StatusOK)
	over := h.until(id, job.Succeeded)
	is.Equal(over.body["reason"], "children_failed") // one part failed
	is.Equal(h.send("POST", "/jobs/"+id+"/complete", `{"token":"`+token+`","part":"c"}`).body["code"], "already_terminal")
}

func TestPipelineAbortAndRetryHTTP(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"wait","chain":[{"kind":"echo","args":{"n":2}}]}`)
	h.until(id, job.Running)
	list := h.send("GET", "/pipelines?status=running&limit=10", "").body["pipelines"].([]any)
	is.Equal(list[0].(map[string]any)["id"], id)
	is.Equal(h.send("GET", "/pipelines?status=happy", "").status, http.StatusBadRequest)
	is.Equal(h.send("GET", "/pipelines?sate=failed", "").status, http.StatusBadRequest)
	shown := h.send("GET", "/pipelines/"+id, "")
	is.Equal(shown.status, http.StatusOK)
	is.Equal(len(shown.body["jobs"].([]any)), 1)
	is.Equal(h.send("GET", "/pipelines/"+id+"?branches=x", "").status, http.StatusBadRequest)

	is.Equal(h.send("POST", "/pipelines/"+id+"/retry", "").body["code"], "not_failed")
	is.Equal(h.send("POST", "/pipelines/"+id+"/cancel", "").body["cancelled"], []any{id})
	h.until(id, job.Cancelled)
	is.Equal(h.send("POST", "/pipelines/"+id+"/cancel", "").body["code"], "already_terminal")
	is.Equal(h.send("POST", "/pipelines/"+id+"/retry", "").body["retried"], []any{id})
	h.until(id, job.Running)
	for _, route := range [][2]string{{"GET", ""}, {"POST", "/cancel"}, {"POST", "/retry"}} {
		is.Equal(h.send(route[0], "/pipelines/999999"+route[1], "").status, http.StatusNotFound)
	}
}

func TestJobListWithBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"fan"}`)
	h.until(id, job.Succeeded)
	listed := func(query string) int { return len(h.send("GET", "/jobs"+query, "").body["jobs"].([]any)) }
	is.Equal(listed(""), 1)
	is.Equal(listed("?pipeline="+id), 3)
	is.Equal(listed("?parent="+id), 2)
	branch := h.send("GET", "/jobs?parent="+id, "").body["jobs"].([]any)[0].(map[string]any)["id"].(string)
	is.Equal(h.send("DELETE", "/jobs/"+branch, "").body["code"], "part_of_pipeline")
	shown := h.send("GET", "/pipelines/"+id, "").body["jobs"].([]any)[0].(map[string]any)
	is.Equal(shown["fan_out"].(map[string]any)["states"], map[string]any{"succeeded": 2.0})
	is.Equal(h.send("DELETE", "/jobs/"+id, "").body["deleted"], 3.0)
}

func TestBulkCommandsOverHTTP(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	for range 3 {
		h.submit(`{"kind":"echo","subject":"s","delay":3600}`)
	}
	kept := h.submit(`{"kind":"echo","delay":3600}`)
	dry := h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"subject":"s","since":"1h"},"dry_run":true}`)
	is.Equal(dry.status, http.StatusOK)
	is.Equal(dry.body["matched"], 3.0)
	is.Equal(dry.body["done"], 0.0)
	is.Equal(h.send("POST", "/admin/workers/jobs/cancel", `{"filter":{"subject":"s"}}`).body["done"], 3.0)
	is.Equal(h.send("GET", "/jobs/"+kept, "").body["state"], "pending")
	is.Equal(h.send("POST", "/admin/workers/jobs/retry", `{"filter":{"kind":"echo","state":["cancelled"]}}`).body["done"], 3.0)
	pgtest.Wait(t, "they have run", func() bool {
		return len(h.send("GET", "/jobs?subject=s&state=succeeded", "").body["jobs"].([]any)) == 3
	})
	for _, body := range []string{`{}`, `{"filter":{}}`, `{"filter":{"state":["succeeded"]}}`, `{"filter":{"state":["happy"]}}`,
		`{"filter":{"pipeline":"x"}}`, `{"filter":{"since":"soon"}}`, `{"filter":{"sate":"failed"}}`} {
		for _, route := range []string{"cancel", "retry"} {
			a := h.send("POST", "/admin/workers/jobs/"+route, body)
			is.Equal(a.status, http.StatusBadRequest)
			is.Equal(a.body["code"], "invalid_request")
		}
	}
}

// A user who may cancel and retry their own jobs, but not approve them, must not be able to bypass approval by doing so.
func TestApprovalBypassByCancelRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("sue", "submitter")})
	_, err := h.Admin("ann").SetLane(t.Context(), "careful", job.LaneChange{RequiresApproval: new(true)})
	is.NoErr(err)
	id := h.submit(`{"kind":"echo","lane":"careful"}`)
	is.Equal(h.send("POST", "/jobs/"+id+"/cancel", "").status, http.StatusOK)
	again := h.send("POST", "/jobs/"+id+"/retry", "")
	is.Equal(again.status, http.StatusAccepted)
	is.Equal(again.body["state"], "awaiting_approval")
	is.Equal(again.body["retried"], []any{})
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "").status, http.StatusForbidden)
	is.Equal(h.send("GET", "/jobs/"+id, "").body["state"], "awaiting_approval")
}
