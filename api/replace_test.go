package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestReplaceThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	for name, more := range map[string]string{
		"replace":  `"replace":true,"delay":3600`,
		"debounce": `"debounce":"1h","debounce_max":"2h"`,
		"throttle": `"throttle":3600`,
	} {
		submit := func(args string) answer {
			return h.send("POST", "/jobs", `{"kind":"echo","unique_key":"`+name+`","args":`+args+`,`+more+`}`)
		}
		first := submit(`{"n":1}`)
		is.Equal(first.status, http.StatusAccepted)
		is.Equal(first.body["replaced"], false)
		again := submit(`{"n":2}`)
		is.Equal(again.body["id"], first.body["id"])
		is.Equal(again.body["duplicate"], true)
		is.Equal(again.body["replaced"], true)
		read := h.send("GET", "/jobs/"+first.body["id"].(string), "")
		is.Equal(read.body["args"], map[string]any{"n": 2.0})
		is.Equal(read.body["replaced"], 1.0)
	}
	for more, want := range map[string]string{
		`"replace":true`:                                          "need a unique_key",
		`"unique_key":"u","debounce":0`:                           "Debounce with a wait of 0",
		`"unique_key":"u","debounce":5`:                           "debounce max of 0s, want at least its wait of 5s",
		`"unique_key":"u","debounce_max":5`:                       "Debounce with a wait of 0",
		`"unique_key":"u","throttle":"-1s"`:                       "throttle of -1s, want more than 0",
		`"unique_key":"u","throttle":0`:                           "Throttle with an interval of 0",
		`"unique_key":"u","throttle":1,"delay":1`:                 "throttle with a delay",
		`"replace":true,"unique_key":"u","unique_while":"active"`: "replace needs unique while pending",
	} {
		a := h.send("POST", "/jobs", `{"kind":"echo",`+more+`}`)
		is.Equal(a.body["code"], "invalid_request")
		is.True(strings.Contains(a.body["detail"].(string), want))
	}
}

func TestReplaceOtherSubmittersJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	const body = `{"kind":"echo","delay":3600,"unique_key":"co2/2025","replace":true}`
	bobs := h.send("POST", "/jobs", body, "X-Who", "bob")
	is.Equal(bobs.status, http.StatusAccepted)
	for _, who := range []string{"ana", "root"} { // root may read the job, but submits for itself
		a := h.send("POST", "/jobs", body, "X-Who", who)
		is.Equal(a.status, http.StatusConflict)
		is.Equal(a.body["code"], "unique_key_held")
		is.True(!strings.Contains(a.body["detail"].(string), bobs.body["id"].(string)))
	}
	is.Equal(h.send("GET", "/jobs/"+bobs.body["id"].(string), "", "X-Who", "bob").body["replaced"], 0.0)
}
