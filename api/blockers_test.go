package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestJobBlockersThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo","delay":"1h"}`)
	a := h.send("GET", "/jobs/"+id+"/blockers", "")
	is.Equal(a.status, http.StatusOK)
	is.True(strings.Contains(a.text, `"why":"scheduled"`))
	is.True(strings.Contains(a.text, "not due yet"))
	h.send("POST", "/jobs/"+id+"/cancel", "")
	is.Equal(strings.TrimSpace(h.send("GET", "/jobs/"+id+"/blockers", "").text), `{"blockers":[]}`) // a finished job has no blockers
	is.Equal(h.send("GET", "/jobs/999999999/blockers", "").status, http.StatusNotFound)
}
