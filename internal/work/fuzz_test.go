package work

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/job"
)

// Accepted arguments are storable and valid JSON, and do not change when encoded again, for example as part of a chain's plan.
func FuzzJobArguments(f *testing.F) {
	for _, text := range []string{``, ` `, `{}`, `{ "a" : [ 1e400 , -0.10 , "<b>&\/" ] }`, `"\u0000"`, `"\\u0000"`, `"\ud83d"`, `"\ud83d\ude00"`, "\"\xff\"",
		"\"\u2028\u2029\"", `{"a":1,"a":2}`, `nul`, `1 2`, "\ufeff{}", "\x00", strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth),
		strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), `"\"` + strings.Repeat("[", maxDepth+1) + `"`, `"` + strings.Repeat("x", 100) + `"`} {
		f.Add([]byte(text))
	}
	const limit = 64 << 10
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := Encode(json.RawMessage(text), limit)
		if err != nil {
			if !errors.Is(err, job.ErrInvalidArgs) && !errors.Is(err, job.ErrTooLarge) {
				t.Errorf("%q: %v", text, err)
			}
			if json.Valid(text) && depth(text) <= maxDepth && len(text) <= limit && job.Unstorable(text) == "" {
				t.Errorf("%q is rejected: %v", text, err)
			}
			return
		}
		if !json.Valid(once) || depth(once) > maxDepth || len(once) > limit || job.Unstorable(once) != "" {
			t.Fatalf("%q becomes %q", text, once)
		}
		var is, was any
		if len(bytes.TrimSpace(text)) > 0 && (decode(once, &is) != nil || decode(text, &was) != nil || !same(is, was)) {
			t.Errorf("%q becomes %q", text, once)
		}
		again, err := Encode(once, limit)
		if err != nil || !bytes.Equal(again, once) {
			t.Errorf("%q becomes %q: %v", once, again, err)
		}
		plan := &Submission{Kind: "k", Planned: []Step{{Step: job.Step{Kind: "k", Args: once}}}}
		if err := plan.EncodePlan(); err != nil {
			t.Fatalf("a plan with %q: %v", once, err)
		}
		var steps []job.Step
		if err := json.Unmarshal(plan.Plan, &steps); err != nil || !bytes.Equal(steps[0].Args, once) {
			t.Errorf("%q is read from a plan as %s: %v", once, plan.Plan, err)
		}
	})
}

// depth determines the nesting depth of JSON by reading its tokens.
func depth(text []byte) (most int) {
	decoder, now := json.NewDecoder(bytes.NewReader(text)), 0
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return most
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			now++
			most = max(most, now)
		case json.Delim(']'), json.Delim('}'):
			now--
		}
	}
}

// decode decodes JSON without changing the notation of numbers.
func decode(text []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(v)
}

// same reports whether two JSON values are equivalent.
func same(a, b any) bool {
	left, err1 := json.Marshal(a)
	right, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(left, right)
}
