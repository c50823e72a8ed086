//go:build failpoints

package faults

import (
	"testing"

	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/internal/steps"
)

func TestTemporalPodDeathPerStep(t *testing.T) {
	for _, step := range steps.All {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t, temporal.Name)
			dies := w.start("dies", step+"=kill@5")
			w.load(1, 50)
			dies.waitKilled()
			w.start("heir", "")
			w.load(1, 50)
			w.finish()
			w.is.True(dies.log.Count("failpoint "+step+": kill") == 1)
		})
	}
}
