package torture

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestPlanForOtherFleet(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]history.Act{
		"a verb that is not known": {No: 1, Verb: "love"},
		"a pod that is not there":  {No: 1, Verb: "kill", Pod: "pod9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			err := Inject(t.Context(), NewCrowd(&World{}), []history.Act{act})
			is.True(err != nil) // the planned fault is rejected
		})
	}
}
