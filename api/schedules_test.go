package api_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

const nightly = "/admin/workers/schedules/nightly"

func TestScheduleLifecycleThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: authenticateAs("ann", "platform_admin")})
	dry := h.send("PUT", nightly+"?dry_run=true", `{"expression":"30 2 * * *","zone":"Europe/Zurich","kind":"echo"}`)
	is.Equal(dry.status, http.StatusOK)
	is.Equal([]any{dry.body["created"], dry.body["dry_run"], dry.body["before"]}, []any{true, true, nil})
	is.Equal(len(dry.body["next_occurrences"].([]any)), 5)
	is.True(strings.Contains(dry.body["words"].(string), "Europe/Zurich"))
	is.Equal(h.send("PATCH", nightly, `{"zone":"UTC"}`).body["code"], "not_found") // the dry run created nothing
	made := h.send("PUT", nightly, `{"expression":"30 2 * * *","kind":"echo","args":{"a":"<b>"},"overlap":"skip","priority":7}`)
	is.Equal(made.status, http.StatusOK)
	patched := h.send("PATCH", nightly, `{"zone":"Europe/Zurich","overlap":null}`, "X-Reason", "they moved")
	is.Equal(patched.body["changed"], []any{"zone"}) // settings not sent are unchanged
	is.Equal(patched.body["after"].(map[string]any)["overlap"], "skip")
	put := h.send("PUT", nightly, `{"expression":"30 2 * * *","kind":"echo"}`)
	is.Equal(put.body["changed"], []any{"zone", "args", "priority", "overlap"}) // PUT replaces all settings

	shown := h.send("GET", nightly, "").body
	is.Equal([]any{shown["name"], shown["zone"], shown["paused"], shown["from_code"], shown["error"]}, []any{"nightly", "UTC", false, false, ""})
	is.Equal(len(shown["next_occurrences"].([]any)), 5)
	is.Equal(shown["last_occurrences"], []any{})
	is.Equal(len(h.send("GET", "/admin/workers/schedules", "").body["schedules"].([]any)), 1)
	is.Equal(h.send("DELETE", nightly, "").status, http.StatusNoContent)
	for _, method := range []string{"GET", "DELETE"} {
		is.Equal(h.send(method, nightly, "").body["code"], "not_found")
	}
	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Target: "schedule nightly"})
	is.NoErr(err)
	trail = slices.DeleteFunc(trail, func(row admin.AuditRow) bool { return row.Action == "job.read_args" }) // showing the previous arguments in a response is audited too
	var did []string
	for _, row := range trail {
		is.Equal(row.Actor, "ann")
		did = append(did, row.Action)
	}
	is.Equal(did, []string{"schedule.delete", "schedule.set", "schedule.set", "schedule.set"})
	is.Equal(trail[2].Reason, "they moved")
}

func TestInvalidScheduleThroughAPI(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{})
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"expression is missing":      {`{"kind":"echo"}`, 422, "invalid_schedule"},
		"an invalid expression":      {`{"expression":"x","kind":"echo"}`, 422, "invalid_schedule"},
		"one that never fires":       {`{"expression":"0 0 30 2 *","kind":"echo"}`, 422, "invalid_schedule"},
		"one that fires too often":   {`{"expression":"@every 100ms","kind":"echo"}`, 422, "invalid_schedule"},
		"a zone in the expression":   {`{"expression":"TZ=Europe/Zurich 0 0 * * *","kind":"echo"}`, 422, "invalid_schedule"},
		"an unknown zone":            {`{"expression":"@daily","zone":"Mars/Olympus","kind":"echo"}`, 422, "invalid_schedule"},
		"no kind":                    {`{"expression":"@daily"}`, 422, "invalid_schedule"},
		"an unknown policy":          {`{"expression":"@daily","kind":"echo","missed":"perhaps"}`, 422, "invalid_schedule"},
		"a priority out of range":    {`{"expression":"@daily","kind":"echo","priority":101}`, 422, "invalid_schedule"},
		"a kind that no pod handles": {`{"expression":"@daily","kind":"nobody"}`, 400, "unknown_kind"},
		"an unknown lane":            {`{"expression":"@daily","kind":"echo","lane":"fast"}`, 400, "unknown_lane"},
		"an unknown field":           {`{"expression":"@daily","kind":"echo","colour":"red"}`, 400, "invalid_request"},
		"a field that is twice":      {`{"expression":"@daily","kind":"echo","kind":"wait"}`, 400, "invalid_request"},
		"a number for a text":        {`{"expression":5,"kind":"echo"}`, 400, "invalid_request"},
		"a NUL":                      {`{"expression":"@daily","kind":"echo","subject":"\u0000"}`, 400, "invalid_text"},
		"no body":                    {``, 415, "unsupported_media_type"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			a := h.send("PUT", nightly, c.body)
			is.Equal(a.status, c.status)
			is.Equal(a.body["code"], c.code)
			is.True(a.body["message"] != "")
		})
	}
	is := is.New(t)
	is.Equal(h.send("PUT", "/admin/workers/schedules/..%2Fx", `{"expression":"@daily","kind":"echo"}`).status, http.StatusUnprocessableEntity)
	is.Equal(h.send("PUT", nightly, `{"expression":"@daily","kind":"nobody","allow_unregistered":true}`).status, http.StatusOK) // another program handles the kind
	is.Equal(h.send("PUT", nightly+"?dry=1", `{"expression":"@daily","kind":"echo"}`).status, http.StatusBadRequest)
	is.Equal(h.send("POST", nightly+"/pause", `{"why":"x"}`).status, http.StatusBadRequest)
	is.Equal(h.send("PUT", "/admin/workers/schedules/preview", `{"expression":"@daily","kind":"echo"}`).status, http.StatusUnprocessableEntity) // preview is reserved for a route
	for _, path := range []string{"/admin/workers/schedules/none", "/admin/workers/schedules/none/occurrences"} {
		is.Equal(h.send("GET", path, "").status, http.StatusNotFound)
	}
	for _, command := range []string{"pause", "resume", "trigger"} {
		is.Equal(h.send("POST", "/admin/workers/schedules/none/"+command, "").body["code"], "not_found")
	}
}

func TestScheduleExpressionPreview(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	preview := func(expression, zone string) answer {
		return h.send("GET", "/admin/workers/schedules/preview?"+url.Values{"expression": {expression}, "zone": {zone}}.Encode(), "")
	}
	a := preview("30 2 * * *", "Europe/Zurich")
	is.Equal(a.status, http.StatusOK)
	is.True(strings.Contains(a.body["words"].(string), "Europe/Zurich"))
	is.Equal(len(a.body["next_occurrences"].([]any)), 5)
	first, err := time.Parse(time.RFC3339, a.body["next_occurrences"].([]any)[0].(string))
	is.NoErr(err)
	is.True(first.After(time.Now()))
	for _, wrong := range []answer{preview("30 2 * *", ""), preview("", ""), preview("@daily", "Nowhere"), preview("@every 10ms", "")} {
		is.Equal(wrong.status, http.StatusUnprocessableEntity)
		is.Equal(wrong.body["code"], "invalid_schedule")
		is.True(wrong.body["detail"] != "") // the detail explains the error
	}
	is.Equal(h.send("GET", "/admin/workers/schedules/preview?expr=x", "").status, http.StatusBadRequest)
}
