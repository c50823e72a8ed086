package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestRetentionPerKindThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	const path = "/admin/workers/retention"
	set := h.send("PUT", path+"/a%2Fb/failed", `{"keep_s":3600}`)
	is.Equal(set.status, http.StatusOK)
	is.Equal(set.body, map[string]any{"kind": "a/b", "state": "failed", "changed": true, "before": nil, "after": 3600.0})
	list := h.send("GET", path, "")
	is.Equal(list.body["retention"], []any{map[string]any{"kind": "a/b", "state": "failed", "keep_s": 3600.0}})
	is.Equal(h.send("DELETE", path+"/a%2Fb/failed", "").body["changed"], true)
	is.Equal(h.send("DELETE", path+"/a%2Fb/failed", "").body["changed"], false) // already deleted
	for body, status := range map[string]int{`{}`: 400, `{"keep_s":null}`: 400, `{"keep_s":-1}`: 422, `{"keep_s":1,"state":"failed"}`: 400, ``: 415} {
		is.Equal(h.send("PUT", path+"/k/failed", body).status, status)
	}
	is.Equal(h.send("PUT", path+"/k/running", `{"keep_s":1}`).status, http.StatusUnprocessableEntity) // running is not a final state
	is.Equal(h.send("GET", path+"?kind=k", "").status, http.StatusBadRequest)
}
