package checker

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/trapeze-run/trapeze/job"
)

// demoArgs contains those arguments of the demo kinds that the checker needs.
type demoArgs struct {
	MS    int64      `json:"ms"`
	N     int        `json:"n"`
	MB    int64      `json:"mb"`
	Rows  int        `json:"rows"`
	Steps []job.Step `json:"steps"` // for demo.chain; in demo.progress, this is a number

	Undo *job.Step `json:"undo"` // for demo.chain

	Join   *job.Step `json:"join"`
	Policy string    `json:"policy"`
}

func demoArgsOf(j *job.JobRow) (a demoArgs) {
	_ = json.Unmarshal(j.Args, &a) // if the arguments do not match, they belong to another kind
	return a
}

// DemoKinds returns the demo kinds in sorted order.
func DemoKinds() []string { return slices.Sorted(maps.Keys(demoKinds)) }

// demoKinds lists the kinds that a pod handles unless it was started with a subset. Remote workers handle all of them except demo.tx and demo.batch.
var demoKinds = map[string]bool{
	"demo.noop": true, "demo.echo": true, "demo.result": true, "demo.sleep": true, "demo.progress": true, "demo.fail": true,
	"demo.flaky": true, "demo.panic": true, "demo.exit": true, "demo.goexit": true, "demo.spin": true, "demo.block": true,
	"demo.leak": true, "demo.hog": true, "demo.chain": true, "demo.fanout": true, "demo.snooze": true, "demo.tx": true, "demo.effect": true,
	"demo.batch": true,
}

// endless reports whether a job runs until it is cancelled or stopped.
func endless(j *job.JobRow) bool {
	return j.Kind == "demo.block" || j.Kind == "demo.spin" && demoArgsOf(j).MS == 0
}

// stepsAfter lists the steps that follow if a job succeeds: first the steps that its handler requests, then the declared steps.
func stepsAfter(j *job.JobRow) (steps []job.Step) {
	return append(askedFor(j), job.Following(j.Planned)...)
}

// askedFor lists the steps that a job's handler requests.
func askedFor(j *job.JobRow) []job.Step {
	switch a := demoArgsOf(j); {
	case j.Kind == "demo.chain":
		return a.Steps
	case j.Kind == "demo.fanout" && a.Join != nil:
		return []job.Step{*a.Join}
	}
	return nil
}

// sameSteps reports whether two lists describe the same steps.
func sameSteps(a, b []job.Step) bool {
	return slices.EqualFunc(a, b, func(x, y job.Step) bool {
		return x.Kind == y.Kind && x.Lane == y.Lane && same(x.Subject, y.Subject) && same(x.Priority, y.Priority) && sameJSON(x.Args, y.Args)
	})
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// sameJSON reports whether two texts encode the same JSON value. Numbers must have the same digits, but object members may be in any order.
// Empty text stands for the empty object, as in a submission without arguments.
func sameJSON(a, b json.RawMessage) bool {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	if bytes.Equal(a, b) {
		return true
	}
	left, okLeft := decoded(a)
	right, okRight := decoded(b)
	return okLeft && okRight && reflect.DeepEqual(left, right)
}

func decoded(raw json.RawMessage) (value any, ok bool) {
	if len(raw) == 0 {
		return map[string]any{}, true
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return value, decoder.Decode(&value) == nil
}

// canonical returns a text that is the same for all encodings of a JSON value.
func canonical(raw json.RawMessage) string {
	value, ok := decoded(bytes.TrimSpace(raw))
	if !ok {
		return string(raw)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return string(raw)
	}
	return string(text)
}
