package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// limits reports whether jobs may wait without a limit, and proposes one. No limit is a valid choice: jobs that were due in an outage run after it.
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
		says = append(says, fmt.Sprintf("jobs of %s may become any age", humanize.Count(len(lanes), "lane", "lanes")))
		do = append(do, "where late work is worthless: trapeze lane set LANE max_age_s=24h, or TRAPEZE_MAX_AGE=24h for all lanes, on all pods")
	}
	if e.pod.ApprovalTTL == 0 {
		says = append(says, "approvals may be awaited for ever")
		do = append(do, "TRAPEZE_APPROVAL_TTL=168h, on all pods, cancels jobs that are not approved within a week")
	}
	if len(says) == 0 {
		says = append(says, "no job waits for ever for its turn or for approval, by this configuration")
	}
	e.find("limits", Healthy, strings.Join(says, "; "), strings.Join(do, "; "))
	return nil
}
