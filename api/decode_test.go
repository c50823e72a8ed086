package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestDuplicateBodyMembers(t *testing.T) {
	t.Parallel()
	h := newIdleHost(t, api.Options{})
	for body, at := range map[string]string{
		`{"kind":"echo","kind":"wait"}`:                                           "/kind",
		`{"kind":"echo","KIND":"wait"}`:                                           "/KIND", // encoding/json would read both members as kind
		`{"kind":"echo","ſubject":"a","subject":"b"}`:                             "/subject",
		`{"kind":"echo","args":{"a":{"b":1,"b":2}}}`:                              "/args/a/b",
		`{"kind":"echo","args":{"a":1},"args":{"a":2}}`:                           "/args",
		`{"kind":"echo","chain":[{"kind":"echo"},{"kind":"echo","kind":"wait"}]}`: "/chain/1/kind",
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			a := h.send("POST", "/jobs", body)
			is.Equal(a.status, http.StatusBadRequest)
			is.Equal(a.body["code"], "invalid_request")
			is.Equal(a.body["message"], "invalid JSON body")
			is.True(strings.Contains(a.body["detail"].(string), "duplicate member "+at))
		})
	}
	is := is.New(t)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo","args":{"a":1,"A":2,"b":[{"a":1},{"a":1}]}}`).status, http.StatusAccepted) // names in arguments are case-sensitive
	is.Equal(h.send("PATCH", "/admin/workers/lanes/default", `{"slots":1,"slots":100}`).status, http.StatusBadRequest)
}

// FuzzDecode looks for bodies that crash the decoder, and for accepted bodies that are not exactly one JSON value.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{`{"kind":"echo","args":{"a":[1,{"b":null}]},"delay":"1m"}`, `{"kind":"echo"}{}`, `[[[[`, `{"kind":"\u0000"}`, "\xff", `{"delay":1e400}`, `{"kind":1,"kind":2}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var s api.Submission
		if api.Decode(strings.NewReader(body), &s) == nil && !json.Valid([]byte(body)) {
			t.Fatalf("%q is not JSON", body)
		}
		var many api.BulkRequest
		if api.Decode(strings.NewReader(body), &many) == nil {
			_, _ = many.Jobs(time.Now())
		}
	})
}
