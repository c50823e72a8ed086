package api_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/query"
	"github.com/trapeze-run/trapeze/job"
)

// submissions lists valid and invalid bodies for POST /jobs.
var submissions = []string{
	`{"kind":"echo"}`,
	`{"kind":"echo","args":{"n":1,"big":9007199254740993,"far":1e400},"subject":"s","priority":-100,"delay":"1h","max_attempts":3}`,
	`{"kind":"echo","args":null,"subject":"","priority":0,"delay":3600.5,"unique_key":"u","unique_while":"active","lane":"default"}`,
	`{"kind":"theirs","foreign":true,"delay":"9h","chain":[{"kind":"a","args":["<b>&"],"subject":"\u00e9"},{"kind":"echo","priority":7}]}`,
	`{"kind":"echo","subject":"\u0000"}`,
	`{"kind":"echo","args":{"a":"\ud83d"}}`,
	`{"kind":"echo","args":{"a":"\ud83d\ude00","\\u0000":1}}`,
	"{\"kind\":\"echo\",\"subject\":\"\xff\"}",
	"\ufeff" + `{"kind":"echo"}`,
	`{"kind":"echo","kind":"echo","args":{"a":1,"a":2}}`,
	`{"KIND":"echo"}`,
	`{"kind":"echo","delay":1e300}`,
	`{"kind":"echo","delay":"NaN"}`,
	`{"kind":"echo","delay":"-1h"}`,
	`{"kind":"echo","delay":"2562047h47m"}`,
	`{"kind":"echo","max_attempts":4294967297}`,
	`{"kind":"echo","max_attempts":0}`,
	`{"kind":"echo","max_attempts":9223372036854775808}`,
	`{"kind":"echo","unique_key":"` + strings.Repeat("k", job.MaxKeyBytes+1) + `"}`,
	`{"kind":"echo","subject":"\n\r../;--'\u202e"}`,
	`{"kind":"echo","chain":[]}`,
	`{"kind":"echo","chain":[null]}`,
	`{"kind":"echo","args":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`,
	`[]`, `null`, ``, `{"kind":"echo"}{}`, `{"kind":1}`,
}

// An accepted submission stays the same when it is encoded and decoded again.
func FuzzASubmissionIsDecodedWholeOrRefused(f *testing.F) {
	for _, body := range submissions {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var first, second api.Submission
		if err := api.Decode(bytes.NewReader(body), &first); err != nil {
			return
		}
		encoded, err := json.Marshal(first)
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", first, err)
		}
		if err := api.Decode(bytes.NewReader(encoded), &second); err != nil {
			t.Fatalf("%s, encoded from %s, is rejected: %v", encoded, body, err)
		}
		again, err := json.Marshal(second)
		if err != nil || !bytes.Equal(again, encoded) {
			t.Fatalf("%s, encoded from %s, becomes %s: %v", encoded, body, again, err)
		}
		if what := job.Unstorable(encoded); what != "" || !bytes.Equal(compact(t, first.Args), compact(t, second.Args)) {
			t.Errorf("%s, encoded from %s: %s", encoded, body, what)
		}
	})
}

// compact returns JSON without spaces, and with HTML characters escaped as Marshal does.
func compact(t *testing.T, raw json.RawMessage) []byte {
	if raw == nil {
		return nil
	}
	text, err := json.Marshal(raw)
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return text
}

func FuzzAnIDIsAPositiveNumberOrRefused(f *testing.F) {
	for _, text := range []string{"1", "9223372036854775807", "9223372036854775808", "0", "-1", "+7", "007", "1e3", "0x1", " 1", "1_000", "٣", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := query.ID(text)
		if err != nil {
			return
		}
		again, err := query.ID(strconv.FormatInt(id, 10))
		if id <= 0 || err != nil || again != id {
			t.Errorf("%q is %d, which is %d: %v", text, id, again, err)
		}
	})
}

// An accepted time stays the same when it is formatted as RFC 3339, as commands send it to a server.
func FuzzAMomentSaysTheSameAgainOrIsRefused(f *testing.F) {
	for _, text := range []string{"2025-01-31T08:00:00Z", "2025-01-31T08:00:00.123456789+05:45", "90m", "1h30m0.5s", "2562047h47m16.854775807s",
		"0s", "-1h", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:60Z", "9999-12-31T23:59:59-23:59", "now", "1", ""} {
		f.Add(text)
	}
	now := time.Date(2025, 1, 31, 8, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		at, err := query.Since(text, now)
		if err != nil {
			return
		}
		again, err := query.Since(at.Format(time.RFC3339Nano), now)
		if err != nil || !again.Equal(at) {
			t.Errorf("%q is %s, which is %s: %v", text, at, again, err)
		}
	})
}

func FuzzStatesAreKnownOrRefused(f *testing.F) {
	for _, text := range []string{"pending", "pending,running", "pending,pending", "Pending", "pending,", ",", "", "pending running", "happy", "pending\x00"} {
		f.Add(text, "failed")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		states, err := query.States([]string{one, other})
		if err != nil {
			return
		}
		var names []string
		for _, state := range states {
			if !state.Known() {
				t.Errorf("%q and %q hold the state %q", one, other, state)
			}
			names = append(names, string(state))
		}
		again, err := query.States(names)
		if err != nil || !reflect.DeepEqual(again, states) {
			t.Errorf("%v becomes %v: %v", states, again, err)
		}
	})
}
