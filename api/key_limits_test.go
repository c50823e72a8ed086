package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

func TestLimitRequests(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: authenticateAs("ann", "platform_admin")})
	const path, of = "/admin/workers/limits", "?scope=lane&name=default&key=a%26b"
	set := h.send("PUT", path, `{"scope":"lane","name":"default","key":"a&b","slots":2}`)
	is.Equal(set.status, http.StatusOK)
	is.Equal([]any{set.body["changed"], set.body["before"], set.body["held"]}, []any{[]any{"slots"}, nil, 0.0})
	is.Equal(h.send("PATCH", path, `{"scope":"lane","name":"default","key":"a&b","weight":3}`).status, http.StatusOK)
	is.Equal(h.send("PATCH", path, `{"scope":"kind","name":"echo","key":"*","slots":1}`).status, http.StatusOK)
	first := h.send("GET", path+"?limit=1", "")
	is.Equal(first.body["limits"], []any{map[string]any{"scope": "kind", "name": "echo", "key": "*", "slots": 1.0, "weight": nil, "rate": nil, "per": nil, "burst": nil}})
	next := h.send("GET", path+"?limit=1&cursor="+first.body["next_cursor"].(string), "")
	is.Equal(next.body["limits"], []any{map[string]any{"scope": "lane", "name": "default", "key": "a&b", "slots": 2.0, "weight": 3.0, "rate": nil, "per": nil, "burst": nil}})
	is.Equal(len(h.send("GET", path+"?scope=lane&key=*", "").body["limits"].([]any)), 0)
	is.Equal(h.send("PUT", path, `{"scope":"lane","name":"default","key":"a&b","slots":2}`).body["changed"], []any{"weight"}) // PUT replaces all values
	is.Equal(h.send("DELETE", path+of, "").body["after"], nil)
	is.Equal(len(h.send("DELETE", path+of, "").body["changed"].([]any)), 0) // it no longer exists
	usage := h.send("GET", path+"/usage?lane=default", "")
	is.Equal(usage.body, map[string]any{"keys": []any{}, "complete": true})
	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Target: "lane default"})
	is.NoErr(err)
	is.Equal(len(trail), 4)
	is.Equal([]any{trail[0].Actor, trail[0].Action}, []any{"ann", "limit.set"})
}

func TestInvalidLimitRequests(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{})
	const path = "/admin/workers/limits"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
	}{
		{"no slots", "PUT", path, `{"scope":"lane","name":"default","key":"a","slots":0}`, 422},
		{"negative slots", "PUT", path, `{"scope":"lane","name":"default","key":"a","slots":-1}`, 422},
		{"no weight", "PUT", path, `{"scope":"lane","name":"default","key":"a","weight":0}`, 422},
		{"large weight", "PUT", path, `{"scope":"lane","name":"default","key":"a","weight":101}`, 422},
		{"long key", "PUT", path, `{"scope":"lane","name":"default","key":"` + strings.Repeat("k", 201) + `","slots":1}`, 422},
		{"long kind", "PUT", path, `{"scope":"kind","name":"` + strings.Repeat("k", 101) + `","key":"a","slots":1}`, 422},
		{"unknown scope", "PUT", path, `{"scope":"pod","name":"default","key":"a","slots":1}`, 422},
		{"no rate", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":0}`, 422},
		{"negative rate", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":-1}`, 422},
		{"no interval", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":1,"per":0}`, 422},
		{"negative interval", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":1,"per":-1}`, 422},
		{"part of a second", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":1,"per":0.5}`, 422},
		{"no burst", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":1,"burst":0}`, 422},
		{"negative burst", "PUT", path, `{"scope":"lane","name":"default","key":"","rate":1,"burst":-1}`, 422},
		{"interval without rate", "PUT", path, `{"scope":"lane","name":"default","key":"","per":1}`, 422},
		{"burst without rate", "PATCH", path, `{"scope":"lane","name":"default","key":"","burst":1}`, 422},
		{"rate of a key", "PUT", path, `{"scope":"lane","name":"default","key":"a","rate":1}`, 422},
		{"rate of a kind", "PUT", path, `{"scope":"kind","name":"k","key":"","rate":1}`, 422},
		{"rate of an unknown lane", "PUT", path, `{"scope":"lane","name":"nowhere","key":"","rate":1}`, 400},
		{"slots as text", "PUT", path, `{"scope":"lane","name":"default","key":"a","slots":"2"}`, 400},
		{"unknown lane", "PUT", path, `{"scope":"lane","name":"nowhere","key":"a","slots":2}`, 400},
		{"no key", "PUT", path, `{"scope":"lane","name":"default","slots":2}`, 422},
		{"nothing set", "PATCH", path, `{"scope":"lane","name":"default","key":"a"}`, 422},
		{"unknown field", "PATCH", path, `{"scope":"lane","name":"default","key":"a","slot":1}`, 400},
		{"weight of a kind", "PATCH", path, `{"scope":"kind","name":"k","key":"a","weight":2}`, 422},
		{"removal without key", "DELETE", path + "?scope=kind&name=k", ``, 422},
		{"removal with body", "DELETE", path + "?scope=lane&name=default&key=a", `{"slots":1}`, 400},
		{"invalid cursor", "GET", path + "?cursor=x", ``, 400},
		{"unknown filter", "GET", path + "/usage?scope=lane", ``, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			a := h.send(c.method, c.path, c.body)
			is.Equal(a.status, c.status)
			is.True(a.body["code"] == "invalid_request" || a.body["code"] == "unknown_lane")
		})
	}
	is.New(t).Equal(len(h.send("GET", path, "").body["limits"].([]any)), 0)
}
