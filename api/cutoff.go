package api

import (
	"net/http"
	"slices"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// checkReads refuses reads on a pod that is cut off. A connection of such a pod may still answer, from a standby or from a primary that
// no longer is one, and would show an old state. Changes are not refused here: they fail there, or reach the new primary.
func (s *server) checkReads(to Route) error {
	if !to.changes() && to.Needs != access.Nothing && s.cutOff() {
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "this pod has lost the database: try again, or another pod",
			err: store.ErrCutOff}
	}
	return nil
}

// cutOff reports whether the pod's heartbeats have failed until the trust in its lease was over.
func (s *server) cutOff() bool {
	_, reasons := s.r.Ready()
	return slices.Contains(reasons, runner.ReasonCutOff)
}
