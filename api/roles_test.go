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

func TestCustomRoleGrantAndRevoke(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {}, "bob": {"operator"}})})
	root := []string{"X-Who", "root", "X-Reason", "she looks after the lanes"}
	is.Equal(h.send("GET", "/jobs", "", "X-Who", "ana").status, http.StatusForbidden) // ana has no role yet

	made := h.send("PUT", "/admin/roles/keeper", `{"permissions":["jobs:read","jobs:cancel"],"scope":"own"}`, root...)
	is.Equal(made.status, http.StatusOK)
	is.Equal(h.send("PUT", "/admin/roles/grants", `{"principal":"ana","role":"keeper"}`, root...).status, http.StatusOK)
	is.Equal(h.send("PUT", "/admin/roles/grants", `{"principal":"ana","role":"keeper"}`, root...).status, http.StatusOK) // granting a role twice is not an error
	is.Equal(h.send("GET", "/jobs", "", "X-Who", "ana").status, http.StatusOK)                                           // the grant takes effect immediately
	bobs := h.send("POST", "/jobs", `{"kind":"echo","delay":3600}`, "X-Who", "bob").body["id"].(string)
	is.Equal(len(h.send("GET", "/jobs", "", "X-Who", "ana").body["jobs"].([]any)), 0) // the role covers only ana's own jobs
	for _, path := range []string{"/jobs/" + bobs, "/jobs/" + bobs + "/events"} {
		is.Equal(h.send("GET", path, "", "X-Who", "ana").status, http.StatusNotFound)
	}
	is.Equal(h.send("POST", "/jobs/"+bobs+"/cancel", "", "X-Who", "ana").status, http.StatusNotFound)
	is.Equal(len(h.send("GET", "/admin/roles/grants?role=keeper", "", root...).body["grants"].([]any)), 1)

	is.Equal(h.send("PUT", "/admin/roles/keeper", `{"permissions":["jobs:read","jobs:cancel"],"scope":"all"}`, root...).status, http.StatusOK)
	is.Equal(h.send("GET", "/jobs/"+bobs, "", "X-Who", "ana").status, http.StatusOK)                                      // the role now covers all jobs
	is.Equal(h.send("DELETE", "/admin/roles/grants?principal=ana&role=keeper", "", root...).status, http.StatusNoContent) // the role is revoked
	is.Equal(h.send("GET", "/jobs", "", "X-Who", "ana").status, http.StatusForbidden)
	is.Equal(h.send("DELETE", "/admin/roles/keeper", "", root...).status, http.StatusNoContent)
	is.Equal(h.send("DELETE", "/admin/roles/keeper", "", root...).status, http.StatusNotFound)

	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Target: "role keeper"})
	is.NoErr(err)
	var did []string
	for _, row := range trail {
		did = append(did, row.Action)
		is.Equal(row.Actor, "root")
		is.Equal(row.Reason, "she looks after the lanes")
	}
	is.Equal(did, []string{"role.delete", "role.revoke", "role.set", "role.grant", "role.set"})
	is.True(strings.Contains(string(trail[2].Before), `"own"`) && strings.Contains(string(trail[2].After), `"all"`))
}

func TestInvalidRoleDefinitions(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{})
	for name, c := range map[string]struct {
		path, body string
		status     int
	}{
		"built in":                     {"/admin/roles/viewer", `{"permissions":["roles:manage"],"scope":"all"}`, 409},
		"the name of a route":          {"/admin/roles/Grants", `{"permissions":["jobs:read"],"scope":"all"}`, 400},
		"no such permission":           {"/admin/roles/x", `{"permissions":["jobs:everything"],"scope":"all"}`, 400},
		"no permission":                {"/admin/roles/x", `{"permissions":[],"scope":"all"}`, 400},
		"twice":                        {"/admin/roles/x", `{"permissions":["jobs:read","jobs:read"],"scope":"all"}`, 400},
		"no scope":                     {"/admin/roles/x", `{"permissions":["jobs:read"]}`, 400},
		"an own-scope lane permission": {"/admin/roles/x", `{"permissions":["workers:manage"],"scope":"own"}`, 400},
		"a grant of no role":           {"/admin/roles/grants", `{"principal":"ana","role":"nobody"}`, 400},
		"a grant without a principal":  {"/admin/roles/grants", `{"principal":"","role":"viewer"}`, 400},
		"a grant to the program":       {"/admin/roles/grants", `{"principal":"system","role":"viewer"}`, 400},
		"an unknown field":             {"/admin/roles/x", `{"permissions":["jobs:read"],"scope":"all","admin":true}`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(h.send("PUT", c.path, c.body).status, c.status)
		})
	}
}

func TestAuditPages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	for range 5 {
		is.NoErr(admin.Audit(t.Context(), inside.Of(h.Runner).Store, admin.AuditEntry{Actor: "ana", Action: "lane.set", Target: "lane default"}))
	}
	is.NoErr(admin.Audit(t.Context(), inside.Of(h.Runner).Store, admin.AuditEntry{Actor: "bob", Action: "lane.set", Target: "lane default"}))
	cursor, seen := "", 0
	for {
		page := h.send("GET", "/admin/audit?actor=ana&limit=2&cursor="+cursor, "")
		is.Equal(page.status, http.StatusOK)
		seen += len(page.body["audit"].([]any))
		if cursor = page.body["next_cursor"].(string); cursor == "" {
			break
		}
	}
	is.Equal(seen, 5) // each of ana's entries once, and none of bob's
	is.Equal(h.send("GET", "/admin/audit?actor=%00", "").status, http.StatusBadRequest)
	is.Equal(h.send("GET", "/admin/audit?who=ana", "").status, http.StatusBadRequest)
}

func TestForgedListCursors(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	for range 2 {
		h.submit(`{"kind":"echo","delay":3600}`)
	}
	cursor := h.send("GET", "/jobs?limit=1", "").body["next_cursor"].(string)
	is.True(cursor != "")
	is.Equal(h.send("GET", "/jobs?limit=1&cursor="+cursor, "").status, http.StatusOK)
	for _, wrong := range []string{cursor[1:], cursor[:len(cursor)-1], cursor + "A", "1700000000000000.7", strings.ToUpper(cursor), "%20"} {
		a := h.send("GET", "/jobs?cursor="+wrong, "")
		is.Equal(a.status, http.StatusBadRequest) // invented or truncated cursors
		is.Equal(a.body["code"], "invalid_request")
	}
	is.Equal(h.send("GET", "/jobs?cursor=%00", "").body["code"], "invalid_text")             // the same code as for other parameters
	is.Equal(h.send("GET", "/admin/audit?cursor="+cursor, "").status, http.StatusBadRequest) // a cursor from another list
}
