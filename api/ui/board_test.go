package ui

import (
	"testing"

	"github.com/matryer/is"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// A drained pod is alive but does not add to a lane's limit.
func TestDashboardLaneLimitDrainedPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	l := lane{job.LaneUse{Name: "slow", Enabled: true, Engine: job.EnginePostgreSQL, SlotsPerPod: new(2), Running: 2}}
	b := board{Lanes: []lane{l}, Pods: []pod{{Pod: job.Pod{Slots: 5}}, {Pod: job.Pod{Slots: 5, Drained: true}}}, Waiting: []storeview.BoardWait{{Lane: "slow", Why: "due"}}}
	b.overlay()
	is.Equal(*b.Limit(l), 2)
	is.Equal(b.Waiting[0].Why, "full_lane")
	is.True(b.Bar(l).Full)

	b.Pods, b.Waiting[0].Why = b.Pods[1:], "no_handler"
	b.overlay()
	is.Equal(b.Waiting[0].Why, "no_handler") // a pod is alive, so the reason is its missing handler
}
