package doctor

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// running finds running jobs whose pod is gone or does not know them: no handler works on them.
func (e *examination) running(ctx context.Context) error {
	list, err := view.FindUnknownWork(ctx, e.store)
	if err != nil {
		return err
	}
	for _, w := range list {
		jobs, name := humanize.Count(w.Jobs, "job is", "jobs are"), w.Pod
		if name == "" {
			name = "a pod without a row"
		}
		if w.Gone {
			e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which is gone; the first is %d", jobs, name, w.Boot, w.First),
				"start a pod: it takes them back. If there is one: see in its log why its recovery fails")
			continue
		}
		e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which works on %d; the first is %d",
			jobs, name, w.Boot, w.Known, w.First),
			"nothing for two minutes: the pod hands back what it does not know. If this stays: see its log, and restart it")
	}
	if len(list) == 0 {
		e.find("running", Healthy, "every job that runs is known to its pod", "")
	}
	return nil
}
