package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// limits reports whether jobs can wait indefinitely, and proposes limits. Having no limit is a valid choice, because jobs that become due
// during an outage can then run after it.
func (e *examination) limits(ctx context.Context) error {
	lanes, err := view.Lanes(ctx, e.store)
	if err != nil {
		return err
	}
	var says, do []string
	lanes = slices.DeleteFunc(lanes, func(l job.LaneUse) bool {
		if l.MaxAge != nil {
			return *l.MaxAge > 0
		}
		return e.pod.MaxAge > 0
	})
	if len(lanes) > 0 {
		says = append(says, fmt.Sprintf("jobs of %s have no maximum age", text.Count(len(lanes), "lane", "lanes")))
		do = append(do, "if late work has no value, run trapeze lane set LANE max_age_s=24h, or set TRAPEZE_MAX_AGE=24h on all pods for all lanes")
	}
	if e.pod.ApprovalTTL == 0 {
		says = append(says, "jobs can await approval forever")
		do = append(do, "set TRAPEZE_APPROVAL_TTL=168h on all pods to cancel jobs that are not approved within a week")
	}
	if len(says) == 0 {
		says = append(says, "no job waits forever for a slot or for approval with this configuration")
	}
	e.find("limits", Healthy, strings.Join(says, "; "), strings.Join(do, "; "))
	return nil
}
