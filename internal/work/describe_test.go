package work

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// A new field of Submission must be added to its public form or to this list.
func TestSubmissionFieldDescriptions(t *testing.T) {
	is := is.New(t)
	ours := []string{"Plan", "MaxCrashes", "Emitted", "Unlimited", "KindAttempts"} // set or applied by the engine
	one, text := 1, "pending"
	full := &Submission{
		Kind: "k", Args: json.RawMessage(`1`), Planned: []Step{{Step: job.Step{Kind: "next"}}}, Subject: &text, Key: &text, Lane: "l", Priority: &one, Delay: 1,
		MaxAttempts: &one, UniqueKey: &text, UniqueWhile: &text, IdempotencyKey: "i", Submitter: "s", AllowUnregistered: true, Pipeline: "p", Approval: true, Ordered: true, StartBy: 1, Replace: true, Debounce: 1, DebounceMax: 1, Throttle: 1, When: job.Always,
	}
	fields := 0
	for field, value := range reflect.ValueOf(*full).Fields() {
		fields++
		if value.IsZero() != slices.Contains(ours, field.Name) {
			t.Errorf("%s: set it in this test, and describe it", field.Name)
		}
	}
	described := reflect.ValueOf(full.Describe())
	for field, value := range described.Fields() {
		if value.IsZero() {
			t.Errorf("%s is not described", field.Name)
		}
	}
	step := reflect.TypeFor[job.Step]().NumField() - 1      // Own applies only to planned steps
	is.Equal(described.NumField()-1+step, fields-len(ours)) // every other field has a counterpart in job.Submission
}
