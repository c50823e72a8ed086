package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// Submitters can choose arbitrary kinds, which must not fill the Now page or doctor's findings.
func TestManyUnknownKindsOfSubmitter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	for i := range 150 {
		body := fmt.Sprintf(`{"kind":"nobody.%03d","allow_unregistered":true,"delay":%d}`, i, i/75*3600) // half of the jobs are due
		is.Equal(h.send("POST", "/jobs", body, "X-Who", "ana").status, http.StatusAccepted)
	}
	page := h.send("GET", "/ui/", "", "X-Who", "root").text
	is.Equal(strings.Count(page, "nobody."), 20)
	is.Equal(strings.Count(page, "65 other kinds"), 2) // one row for the kinds without a handler, and one for the scheduled jobs
	found := 0
	for _, one := range h.send("GET", "/doctor", "", "X-Who", "root").body["findings"].([]any) {
		if f := one.(map[string]any); f["check"] == "kinds" {
			found++
			is.Equal(f["status"], "fail")
			is.True(found < 6 || strings.Contains(f["says"].(string), "no live pod has a handler of 70 other kinds"))
		}
	}
	is.Equal(found, 6)
}
