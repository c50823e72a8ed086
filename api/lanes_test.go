package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestLaneLifecycleThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: authenticateAs("ann", "platform_admin")})
	const lane = "/admin/workers/lanes/slow"
	dry := h.send("PUT", lane+"?dry_run=true", `{"slots":2,"kinds":["echo"]}`)
	is.Equal(dry.status, http.StatusOK)
	is.Equal([]any{dry.body["created"], dry.body["dry_run"], dry.body["before"]}, []any{true, true, nil})
	is.Equal(h.send("PATCH", lane, `{"slots":1}`).status, http.StatusNotFound) // the dry run created nothing
	made := h.send("PUT", lane, `{"slots":2,"max_age_s":60,"kinds":["echo"]}`)
	is.Equal(made.status, http.StatusOK)
	is.Equal(made.body["changed"], []any{"slots", "max_age_s", "kinds"})
	patched := h.send("PATCH", lane, `{"slots":null,"inactivity_timeout_s":500}`)
	is.Equal(patched.body["changed"], []any{"slots", "inactivity_timeout_s"}) // null removes a limit; settings not sent are unchanged
	is.Equal(patched.body["after"].(map[string]any)["max_age_s"], 60.0)
	put := h.send("PUT", lane, `{"enabled":true}`)
	is.Equal(put.body["changed"], []any{"inactivity_timeout_s", "max_age_s"}) // PUT replaces all settings except the kinds

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

func TestLanePodQueueStateAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	for _, c := range []struct{ shut, open string }{
		{"/admin/workers/lanes/default/drain", "/admin/workers/lanes/default/undrain"},
		{"/admin/workers/pods/" + h.PodID() + "/drain", "/admin/workers/pods/" + h.PodID() + "/undrain"},
		{"/admin/workers/freeze", "/admin/workers/unfreeze"},
		{"/admin/workers/pause", "/admin/workers/resume"},
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
	is.Equal([]any{now["queue_state"].(map[string]any)["paused"], now["queue_state"].(map[string]any)["frozen"]}, []any{false, true})
	slot := now["running"].([]any)[0].(map[string]any)
	is.Equal([]any{slot["job"], slot["kind"], slot["lane"], slot["pod_id"]}, []any{id, "wait", "default", h.PodID()})
	h.send("POST", "/jobs/"+id+"/cancel", "")
	h.until(id, job.Cancelled)
	is.Equal(h.send("POST", "/admin/workers/freeze?wait=20s", "").body["quiet"], true)
	is.Equal(h.send("POST", "/admin/workers/unfreeze", "").body["changed"], true)

	is.Equal(h.send("POST", "/admin/workers/pods/"+h.PodID()+"/drain", "").status, http.StatusOK)
	pgtest.Wait(t, "the pod is not ready", func() bool {
		return h.send("GET", "/readyz", "").status == http.StatusServiceUnavailable
	})
	is.Equal(h.send("GET", "/readyz", "").body["reasons"], []any{"drained by an operator"})
	pod := h.send("GET", "/admin/workers/pods", "").body["pods"].([]any)[0].(map[string]any)
	is.Equal([]any{pod["drained"], pod["draining"], pod["closed"]}, []any{true, false, nil}) // drained, but still alive
}

func TestInvalidLaneSettingsThroughAPI(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{})
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
	is.Equal(h.send("GET", "/admin/workers/status", "").body["queue_state"], map[string]any{"paused": false, "frozen": false}) // none of the requests had an effect
}

// printer is an engine served by the test's pod.
type printer struct{ fails bool }

func (printer) Name() string { return "printer" }

func (p printer) Use(_ context.Context, lanes []string) (map[string]job.EngineUse, error) {
	if p.fails {
		return nil, errors.New("printer does not answer")
	}
	return map[string]job.EngineUse{lanes[0]: {Open: 12, URL: "https://printer.example/" + lanes[0]}}, nil
}

func (printer) JobURL(j job.JobRow) string {
	return fmt.Sprint("https://printer.example/", j.ID, "/", outbox.EpochOf(j.Fence))
}

func (p printer) Check(context.Context) []job.EngineFinding {
	if p.fails {
		return []job.EngineFinding{{Status: "fail", Says: "printer does not answer", Do: "start it"}}
	}
	return []job.EngineFinding{{Status: "ok", Says: "printer answers"}}
}

// inPrinter returns a host with a new lane, print, that has been moved to the engine of the test's pod.
func inPrinter(t *testing.T, fails bool) *host {
	t.Helper()
	is := is.New(t)
	h := newHost(t, api.Options{}, func(r *runner.Runner) { is.NoErr(r.UseEngine(printer{fails})) })
	refused := h.send("PUT", "/admin/workers/lanes/print", `{"engine":"telegraph"}`)
	is.Equal([]any{refused.status, refused.body["code"]}, []any{http.StatusConflict, "no_engine"})
	made := h.send("PUT", "/admin/workers/lanes/print", `{"engine":"printer"}`)
	is.Equal(made.status, http.StatusOK)
	is.Equal(made.body["after"].(map[string]any)["next_engine"], "printer")
	moved := h.send("POST", "/admin/workers/lanes/print/engine?wait=50s", "")
	is.Equal([]any{moved.status, moved.body["engine"], moved.body["next_engine"]}, []any{http.StatusOK, "printer", ""})
	return h
}

func TestLaneOfOtherEngine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := inPrinter(t, false)
	list := h.send("GET", "/admin/workers/lanes", "").body["lanes"].([]any)
	is.Equal(list[1].(map[string]any)["engine_use"], map[string]any{"open": 12.0, "url": "https://printer.example/print"})
	is.Equal(h.send("PUT", "/admin/workers/lanes/print", `{}`).body["changed"], []any{}) // PUT keeps the engine

	id := h.submit(`{"kind":"echo","lane":"print"}`)
	o := inside.Of(h.Runner).Pod.Outbox("printer")
	due, err := o.Due(t.Context(), 10)
	is.NoErr(err)
	is.Equal(len(due), 1)
	is.NoErr(o.Started(t.Context(), due[0].ID, due[0].Epoch(), "run"))
	shown := h.send("GET", "/jobs/"+id, "").body
	is.Equal([]any{shown["state"], shown["engine"], shown["engine_url"]}, []any{"running", "printer", "https://printer.example/" + id + "/1"})
	running := h.send("GET", "/admin/workers/status", "").body["running"].([]any)
	is.Equal(running[0].(map[string]any)["pod"], "printer")
	_, err = o.End(t.Context(), due[0].ID, due[0].Epoch(), outbox.End{State: job.Succeeded})
	is.NoErr(err)
	is.Equal(h.send("GET", "/jobs/"+id, "").body["engine"], "printer")
	for _, path := range []string{"/ui/lanes", "/ui/"} {
		page := h.send("GET", path, "").text
		is.True(strings.Contains(page, `<span class="tag">printer</span>`))
		is.True(strings.Contains(page, `<a href="https://printer.example/print" rel="noreferrer">12 open</a>`))
	}
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+id, "").text, `<a href="https://printer.example/`+id+`/1" rel="noreferrer">printer</a>`))
}

func TestLaneOfUnresponsiveEngine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := inPrinter(t, true)
	list := h.send("GET", "/admin/workers/lanes", "").body["lanes"].([]any)
	is.Equal(list[1].(map[string]any)["engine_use"], map[string]any{"open": 0.0, "error": "printer does not answer"})
	var says []string
	for _, f := range h.send("GET", "/doctor", "").body["findings"].([]any) {
		if f := f.(map[string]any); f["check"] == "printer" {
			says = append(says, f["status"].(string)+": "+f["says"].(string))
		}
	}
	is.Equal(says, []string{"fail: printer does not answer"})
	is.True(strings.Contains(h.send("GET", "/ui/lanes", "").text, "printer does not answer"))
}

func TestLaneTemplateThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{InsecureAllowAll: true})
	const template = "/admin/workers/lanes/tenant%2F%2A"
	made := h.send("PUT", template, `{"slots":2,"requires_approval":true}`)
	is.Equal(made.status, http.StatusOK)
	is.Equal(made.body["lane"], "tenant/*")
	is.Equal(h.send("PATCH", template, `{"kinds":["echo"]}`).status, http.StatusUnprocessableEntity)
	is.Equal(h.send("POST", template+"/drain", "").status, http.StatusUnprocessableEntity)
	for _, body := range []string{`{"kind":"echo","lane":"tenant/1"}`, `{"kind":"echo","lane":"default","chain":[{"kind":"echo","lane":"tenant/2"}]}`} {
		is.Equal(h.send("POST", "/jobs", body).body["state"], "awaiting_approval") // before the lane exists
	}
	refused := h.send("POST", "/jobs", `{"kind":"echo","lane":"tennant/1"}`)
	is.True(refused.status == http.StatusBadRequest && strings.Contains(refused.text, "tennant/1"))

	pool := inside.Of(h.Runner).Store.Pool()
	_, err := pool.Exec(t.Context(), `insert into trapeze.lanes (name, slots, template, requires_approval, drained)
		values ('tenant/1', 2, 'tenant/*', true, true), ('tenant/2', 2, 'tenant/*', true, false)`)
	is.NoErr(err)
	lanes := h.send("GET", "/admin/workers/lanes", "").body["lanes"].([]any)
	is.Equal(lanes[2].(map[string]any)["template"], "tenant/*")
	page := h.send("GET", "/ui/lanes", "").text
	for text, n := range map[string]int{`id="lane-tenant/*"`: 1, "2 lanes": 1, `id="lane-tenant/1"`: 1, `id="lane-tenant/2"`: 0, // empty
		`id="edit-tenant/*"`: 1, `id="edit-tenant/1"`: 0, "<option>tenant/1": 0, `PATCH admin/workers/lanes/tenant%2F%2A"`: 1,
		`POST admin/workers/lanes/tenant%2F1/undrain"`: 1} {
		is.Equal(strings.Count(page, text), n) // text
	}
	is.Equal(h.send("POST", "/admin/workers/lanes/tenant%2F1/undrain", "").status, http.StatusOK)
	is.Equal(h.send("DELETE", template, "").status, http.StatusOK)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo","lane":"tenant/3"}`).status, http.StatusBadRequest)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo","lane":"tenant/2"}`).body["state"], "awaiting_approval") // its lanes keep the settings
}
