package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestSubmitRunReadThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("ana", "platform_admin")})
	a := h.send("POST", "/jobs", `{"kind":"echo","args":{"n":1},"subject":"s","priority":0,"max_attempts":2}`)
	is.Equal(a.status, http.StatusAccepted)
	id := a.body["id"].(string)
	is.Equal(a.body["pipeline_id"], id)
	is.Equal(a.body["duplicate"], false)
	is.Equal(a.header.Get("Location"), "/trapeze/jobs/"+id) // the location includes the prefix

	j := h.until(id, job.Succeeded).body
	is.Equal(j["result"], map[string]any{"n": 1.0})
	is.Equal(j["priority"], 0.0) // an explicit 0 is not replaced by the default
	is.Equal(j["max_attempts"], 2.0)
	is.Equal(j["submitter"], "ana")
	events := h.send("GET", "/jobs/"+id+"/events", "").body["events"].([]any)
	is.Equal(events[0].(map[string]any)["event"], "job.enqueued")
	is.Equal(events[len(events)-1].(map[string]any)["to"], "succeeded")
	cursor := events[0].(map[string]any)["cursor"].(string)
	rest := h.send("GET", "/jobs/"+id+"/events?after="+cursor, "").body["events"].([]any)
	is.Equal(len(rest), len(events)-1) // the page starts after the cursor
}

func TestChainInSingleRequest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo","subject":"a","chain":[{"kind":"echo","args":{"n":2},"subject":"b","priority":-5},{"kind":"echo","args":[3]}]}`)
	var jobs []any
	pgtest.Wait(t, "the pipeline ends", func() bool {
		jobs = h.send("GET", "/jobs?state=succeeded&pipeline="+id, "").body["jobs"].([]any)
		return len(jobs) == 3
	})
	for _, one := range jobs {
		j := one.(map[string]any)
		if j["step"] == 2.0 {
			is.Equal(j["subject"], "b") // inherited from the previous step
			is.Equal(j["priority"], -5.0)
			is.Equal(j["result"], []any{3.0})
		}
	}
}

func TestRepeatedIdempotencyKeyThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	first := h.send("POST", "/jobs", `{"kind":"echo","args":{"n":1}}`, "Idempotency-Key", "k")
	h.until(first.body["id"].(string), job.Succeeded)
	second := h.send("POST", "/jobs", `{"kind":"echo","args":{"n":1}}`, "Idempotency-Key", "k")
	is.Equal(second.status, http.StatusAccepted)
	is.Equal(second.body["id"], first.body["id"])
	is.Equal(second.body["duplicate"], true)
	is.Equal(second.body["state"], "succeeded") // the current state of the existing job
	other := h.send("POST", "/jobs", `{"kind":"echo","args":{"n":2}}`, "Idempotency-Key", "k")
	is.Equal(other.status, http.StatusUnprocessableEntity)
	is.Equal(other.body["code"], "idempotency_key_reused")

	unique := h.submit(`{"kind":"echo","delay":"1h","unique_key":"u"}`)
	is.Equal(h.submit(`{"kind":"echo","delay":3600,"unique_key":"u"}`), unique)
}

func TestForeignKindSubmission(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	body := `{"kind":"theirs","delay":3600,"chain":[{"kind":"also_theirs"}]`
	is.Equal(h.send("POST", "/jobs", body+`}`).body["code"], "unknown_kind") // without "foreign", an unknown kind is assumed to be a typo
	is.Equal(h.send("POST", "/jobs", body+`,"allow_unregistered":false}`).body["code"], "unknown_kind")
	id := h.submit(body + `,"allow_unregistered":true}`)
	is.Equal(h.send("GET", "/jobs/"+id, "").body["kind"], "theirs")
}

func TestJobListFiltersAndPages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	for range 5 {
		h.submit(`{"kind":"echo","delay":3600}`)
	}
	h.submit(`{"kind":"wait","delay":3600}`)
	seen, cursor, pages := map[any]bool{}, "", 0
	for {
		page := h.send("GET", "/jobs?kind=echo&state=pending,running&limit=2&cursor="+cursor, "").body
		for _, one := range page["jobs"].([]any) {
			seen[one.(map[string]any)["id"]] = true
		}
		pages++
		if cursor = page["next_cursor"].(string); cursor == "" {
			break
		}
	}
	is.Equal(len(seen), 5) // each matching job is listed once, and jobs of the other kind are not listed
	is.Equal(pages, 3)
	is.Equal(len(h.send("GET", "/jobs?since=1h&limit=1000", "").body["jobs"].([]any)), 6)
	is.Equal(len(h.send("GET", "/jobs?since=2099-01-01T00:00:00Z", "").body["jobs"].([]any)), 0)
}

func TestEndingAJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	waiting := h.submit(`{"kind":"echo","delay":3600}`)
	a := h.send("POST", "/jobs/"+waiting+"/cancel", "")
	is.Equal(a.status, http.StatusOK)
	is.Equal(a.body["state"], "cancelled")
	a = h.send("POST", "/jobs/"+waiting+"/cancel", "")
	is.Equal(a.status, http.StatusOK) // cancelling again returns the final state
	is.Equal(a.body["state"], "cancelled")
	a = h.send("POST", "/admin/workers/jobs/"+waiting+"/force-cancel", "")
	is.Equal(a.status, http.StatusConflict) // stopping a finished job is an error
	is.Equal(a.body["code"], "already_terminal")

	running := h.submit(`{"kind":"wait"}`)
	h.until(running, job.Running)
	is.Equal(h.send("POST", "/jobs/"+running+"/cancel", "").status, http.StatusAccepted) // accepted, because the handler's context has been cancelled
	h.until(running, job.Cancelled)

	stopped := h.submit(`{"kind":"wait"}`)
	h.until(stopped, job.Running)
	a = h.send("POST", "/admin/workers/jobs/"+stopped+"/force-cancel", "")
	is.Equal(a.status, http.StatusOK)
	is.Equal(a.body["state"], "cancelled") // without waiting for the handler
}

func TestErrorsHaveStableCodes(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{MaxBodyBytes: 3 << 20})
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"an unknown kind", "POST", "/jobs", `{"kind":"nobody"}`, 400, "unknown_kind"},
		{"an unknown kind in a chain", "POST", "/jobs", `{"kind":"echo","chain":[{"kind":"nobody"}]}`, 400, "unknown_kind"},
		{"an unknown lane", "POST", "/jobs", `{"kind":"echo","lane":"fast"}`, 400, "unknown_lane"},
		{"no kind", "POST", "/jobs", `{}`, 400, "invalid_request"},
		{"an unknown field", "POST", "/jobs", `{"kind":"echo","agrs":{}}`, 400, "invalid_request"},
		{"two values", "POST", "/jobs", `{"kind":"echo"}{"kind":"echo"}`, 400, "invalid_request"},
		{"an incomplete value", "POST", "/jobs", `{"kind":`, 400, "invalid_request"},
		{"a priority out of range", "POST", "/jobs", `{"kind":"echo","priority":101}`, 400, "invalid_request"},
		{"an invalid delay", "POST", "/jobs", `{"kind":"echo","delay":"soon"}`, 400, "invalid_request"},
		{"a NUL in the subject", "POST", "/jobs", `{"kind":"echo","subject":"\u0000"}`, 400, "invalid_text"},
		{"invalid UTF-8", "POST", "/jobs", "{\"kind\":\"echo\",\"subject\":\"\xff\"}", 400, "invalid_text"},
		{"args over the limit", "POST", "/jobs", `{"kind":"echo","args":"` + strings.Repeat("x", job.MaxArgsBytes) + `"}`, 413, "too_large"},
		{"a body over the limit", "POST", "/jobs", `{"kind":"echo","args":"` + strings.Repeat("x", 3<<20) + `"}`, 413, "too_large"},
		{"an unknown job", "GET", "/jobs/999999", "", 404, "not_found"},
		{"an invalid id", "GET", "/jobs/abc", "", 404, "not_found"},
		{"events of an unknown job", "GET", "/jobs/999999/events", "", 404, "not_found"},
		{"cancelling an unknown job", "POST", "/jobs/999999/cancel", "", 404, "not_found"},
		{"an invalid state", "GET", "/jobs?state=happy", "", 400, "invalid_request"},
		{"an unknown filter", "GET", "/jobs?sate=failed", "", 400, "invalid_request"},
		{"a limit out of range", "GET", "/jobs?limit=0", "", 400, "invalid_request"},
		{"an invalid cursor", "GET", "/jobs?cursor=x", "", 400, "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			a := h.send(c.method, c.path, c.body, "X-Request-Id", "r-1")
			is.Equal(a.status, c.status)
			is.Equal(a.body["code"], c.code)
			is.Equal(a.body["request_id"], "r-1") // the caller's ID is kept
			is.True(a.body["message"] != "")
		})
	}
}

// If a client disconnects, the server neither logs an error nor reports a failure to the host.
func TestDisconnectedClientDuringRequest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	answer := httptest.NewRecorder()
	c := echo.New().NewContext(httptest.NewRequest("POST", "/jobs", nil), answer)
	api.HandleError(fmt.Errorf("read job 7: %w", context.Canceled), c)
	is.Equal(answer.Code, 499)
}

func TestEscapedBackslashVersusNUL(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var v map[string]string
	is.NoErr(api.Decode(strings.NewReader(`{"path":"C:\\u0000"}`), &v))
	is.Equal(v["path"], `C:\u0000`)
	is.True(api.Decode(strings.NewReader(`{"path":"\\\u0000"}`), &v) != nil)
}

func TestRequestsFromOtherOrigin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{LoopbackOnly: true})
	body := `{"kind":"echo"}`
	is.Equal(h.send("POST", "/jobs", body, "Sec-Fetch-Site", "cross-site").status, http.StatusForbidden)
	refused := h.send("POST", "/jobs", body, "Origin", "https://evil.example")
	is.Equal(refused.status, http.StatusForbidden)
	is.True(strings.Contains(fmt.Sprint(refused.body["detail"]), "if a proxy has rewritten Host")) // which has the same effect
	is.Equal(h.send("POST", "/jobs", body, "Content-Type", "text/plain").status, http.StatusUnsupportedMediaType)
	is.Equal(h.send("GET", "/jobs", "", "Host", "evil.example").status, http.StatusForbidden) // an attacker's host name could resolve to 127.0.0.1
	is.Equal(h.send("POST", "/jobs", body).status, http.StatusAccepted)
}

func TestPodHealthReadinessMetrics(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	is.Equal(h.send("GET", "/healthz", "").body["status"], "ok")
	is.Equal(h.send("GET", "/readyz", "").status, http.StatusOK)
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	is.True(strings.Contains(h.send("GET", "/metrics", "").text, "trapeze_jobs_enqueued_total 1"))
	h.stop()
	var draining answer
	pgtest.Wait(t, "the pod drains", func() bool {
		draining = h.send("GET", "/readyz", "")
		return draining.status == http.StatusServiceUnavailable
	})
	is.Equal(draining.body["reasons"], []any{"draining"})
	is.Equal(h.send("GET", "/healthz", "").status, http.StatusOK) // the process itself is healthy
}
