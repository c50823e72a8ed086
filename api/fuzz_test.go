package api_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

// submissions lists valid and invalid bodies for POST /jobs.
var submissions = []string{
	`{"kind":"echo"}`,
	`{"kind":"echo","args":{"n":1,"big":9007199254740993,"far":1e400},"subject":"s","priority":-100,"delay":"1h","max_attempts":3}`,
	`{"kind":"echo","args":null,"subject":"","priority":0,"delay":3600.5,"unique_key":"u","unique_while":"active","lane":"default"}`,
	`{"kind":"theirs","allow_unregistered":true,"delay":"9h","chain":[{"kind":"a","args":["<b>&"],"subject":"\u00e9"},{"kind":"echo","priority":7}]}`,
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

// Encoding and decoding an accepted submission must not change it.
func FuzzSubmissionDecoding(f *testing.F) {
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

// compact returns JSON without spaces, with HTML characters escaped as by Marshal.
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
