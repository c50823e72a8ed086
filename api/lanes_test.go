package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestLanesAreMadeChangedAndDeleted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: as("ann", "platform_admin")})
	const lane = "/admin/workers/lanes/slow"
	dry := h.send("PUT", lane+"?dry_run=true", `{"slots":2,"kinds":["echo"]}`)
	is.Equal(dry.status, http.StatusOK)
	is.Equal([]any{dry.body["created"], dry.body["dry_run"], dry.body["before"]}, []any{true, true, nil})
	is.Equal(h.send("PATCH", lane, `{"slots":1}`).status, http.StatusNotFound) // the dry run created nothing
	made := h.send("PUT", lane, `{"slots":2,"max_age_s":60,"kinds":["echo"]}`)
	is.Equal(made.status, http.StatusOK)
	is.Equal(made.body["changed"], []any{"slots", "max_age_s", "kinds"})
	patched := h.send("PATCH", lane, `{"slots":null,"poll_interval_ms":500}`)
	is.Equal(patched.body["changed"], []any{"slots", "poll_interval_ms"}) // null removes a limit; settings not sent are unchanged
	is.Equal(patched.body["after"].(map[string]any)["max_age_s"], 60.0)
	put := h.send("PUT", lane, `{"enabled":true}`)
	is.Equal(put.body["changed"], []any{"poll_interval_ms", "max_age_s"}) // PUT replaces all settings except the kinds

	list := h.send("GET", "/admin/workers/lanes", "").body["lanes"].([]any)
	is.Equal(list[1].(map[string]any)["kinds"], []any{"echo"})
	waits := h.submit(`{"kind":"echo","delay":3600,"lane":"slow"}`)
	refused := h.send("DELETE", lane, "")
	is.Equal(refused.status, http.StatusConflict)
	is.Equal(refused.body["code"], "lane_not_empty")
	is.Equal(h.send("DELETE", lane+"?move_to=nowhere", "").status, http.StatusNotFound)
	is.Equal(h.send("DELETE", lane, `{"move_to":"default"}`).body["moved"], 1.0)
	is.Equal(h.send("GET", "/jobs/"+waits, "").body["lane"], "default")
	is.Equal(h.send("DELETE", lane, "").status, http.StatusNotFound)
	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Target: "lane slow"})
	is.NoErr(err)
	is.Equal(len(trail), 4)
	is.Equal(trail[0].Actor, "ann")
}

func TestLanesPodsAndTheGateAreClosedAndOpened(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	for _, c := range []struct{ shut, open string }{
		{"/admin/workers/lanes/default/drain", "/admin/workers/lanes/default/resume"},
		{"/admin/workers/pods/" + h.Boot() + "/drain", "/admin/workers/pods/" + h.Boot() + "/resume"},
		{"/admin/workers/freeze", "/admin/workers/thaw"},
		{"/admin/workers/pause", "/admin/workers/unpause"},
	} {
		a := h.send("POST", c.shut, "")
		is.Equal(a.status, http.StatusOK)
		is.Equal(a.body["changed"], true)
		is.Equal(h.send("POST", c.shut, "").body["changed"], false)
		pgtest.Wait(t, "the pod knows of the change", func() bool {
			return h.send("POST", "/jobs", `{"kind":"echo"}`).body["state"] == "pending"
		})
		is.Equal(h.send("POST", c.open, "").body["changed"], true)
		pgtest.Wait(t, "all jobs run again", func() bool {
			return len(h.send("GET", "/jobs?state=pending,running", "").body["jobs"].([]any)) == 0
		})
	}
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	a := h.send("POST", "/admin/workers/freeze", `{"wait":"300ms"}`)
	is.Equal(a.status, http.StatusOK)
	is.Equal([]any{a.body["timed_out"], a.body["running"], a.body["quiet"]}, []any{true, 1.0, false}) // the running job was not killed
	now := h.send("GET", "/admin/workers/status", "").body
	is.Equal([]any{now["gate"].(map[string]any)["paused"], now["gate"].(map[string]any)["frozen"]}, []any{false, true})
	slot := now["running"].([]any)[0].(map[string]any)
	is.Equal([]any{slot["job"], slot["kind"], slot["lane"], slot["boot"]}, []any{id, "wait", "default", h.Boot()})
	h.send("POST", "/jobs/"+id+"/cancel", "")
	h.until(id, job.Cancelled)
	is.Equal(h.send("POST", "/admin/workers/freeze?wait=20s", "").body["quiet"], true)
	is.Equal(h.send("POST", "/admin/workers/thaw", "").body["changed"], true)

	is.Equal(h.send("POST", "/admin/workers/pods/"+h.Boot()+"/drain", "").status, http.StatusOK)
	pgtest.Wait(t, "the pod is not ready", func() bool {
		return h.send("GET", "/readyz", "").status == http.StatusServiceUnavailable
	})
	is.Equal(h.send("GET", "/readyz", "").body["reasons"], []any{"drained by an operator"})
	pod := h.send("GET", "/admin/workers/pods", "").body["pods"].([]any)[0].(map[string]any)
	is.Equal([]any{pod["drained"], pod["draining"], pod["closed"]}, []any{true, false, nil}) // drained, but still alive
}

func TestSettingsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t, api.Options{})
	const lane = "/admin/workers/lanes/default"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"negative slots", "PATCH", lane, `{"slots":-1}`, 422, "invalid_request"},
		{"slots that are not a number", "PATCH", lane, `{"slots":"2"}`, 400, "invalid_request"},
		{"a fractional slot", "PATCH", lane, `{"slots":1.5}`, 400, "invalid_request"},
		{"an unknown setting", "PATCH", lane, `{"slot":2}`, 400, "invalid_request"},
		{"no body", "PATCH", lane, ``, 415, "unsupported_media_type"},
		{"an unknown parameter", "PATCH", lane + "?dryrun=1", `{"slots":2}`, 400, "invalid_request"},
		{"an invalid name", "PUT", "/admin/workers/lanes/a%20b", `{}`, 422, "invalid_request"},
		{"an unknown lane", "PATCH", "/admin/workers/lanes/other", `{}`, 404, "not_found"},
		{"draining an unknown lane", "POST", "/admin/workers/lanes/other/drain", ``, 404, "not_found"},
		{"draining an unknown pod", "POST", "/admin/workers/pods/other/drain", ``, 404, "not_found"},
		{"deleting the default lane", "DELETE", lane, ``, 422, "invalid_request"},
		{"an invalid wait", "POST", "/admin/workers/freeze?wait=soon", ``, 400, "invalid_request"},
		{"a wait that is too long", "POST", "/admin/workers/freeze", `{"wait":"2h"}`, 400, "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			a := h.send(c.method, c.path, c.body)
			is.Equal(a.status, c.status)
			is.Equal(a.body["code"], c.code)
		})
	}
	is := is.New(t)
	is.Equal(h.send("GET", "/admin/workers/status", "").body["gate"], map[string]any{"paused": false, "frozen": false}) // none of the requests had an effect
}
