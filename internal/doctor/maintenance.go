package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
)

// lateAfter is the time since its last run after which a maintenance task counts as late. Each task is due at least once an hour, and
// another pod takes it over after three intervals.
const lateAfter = 4 * time.Hour

// maintenance finds tasks that failed or are late. If no pod is open, it reports nothing, because all tasks are late and the pods check
// already reports the cause.
func (e *examination) maintenance(ctx context.Context) error {
	runs, err := upkeep.TaskRuns(ctx, e.store)
	if err != nil {
		return err
	}
	pods, err := view.ReadPodHealth(ctx, e.store)
	if err != nil || len(pods) == 0 {
		return err
	}
	bad := false
	var late []string
	for _, t := range runs {
		if t.Error != "" {
			bad = true
			e.find("maintenance", Warning, fmt.Sprintf("the maintenance task %s failed on %s: %s", t.Task, t.Pod, text.OneLine(fmt.Errorf("%s", t.Error))),
				"fix the cause that the error names; the next run retries")
		}
		if t.Ago > lateAfter.Seconds() {
			late = append(late, fmt.Sprintf("%s (%s ago)", t.Task, text.Seconds(t.Ago)))
		}
	}
	if len(late) > 0 {
		bad = true
		e.find("maintenance", Warning, "late: "+strings.Join(late, ", "), "check the logs of the pods; select * from "+e.store.Schema()+".maintenance")
	}
	if !bad {
		e.find("maintenance", Healthy, fmt.Sprintf("%s on time", text.Count(len(runs), "maintenance task is", "maintenance tasks are")), "")
	}
	return nil
}
