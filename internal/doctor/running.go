package doctor

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
)

// running finds running jobs whose pod is gone or does not know about them. No handler is working on such jobs.
func (e *examination) running(ctx context.Context) error {
	list, err := view.FindUnknownWork(ctx, e.store)
	if err != nil {
		return err
	}
	for _, w := range list {
		jobs, name := text.Count(w.Jobs, "job is", "jobs are"), w.Pod
		if name == "" {
			name = "a pod without a row"
		}
		if w.Gone {
			e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which is gone; the first is %d", jobs, name, w.PodID, w.First),
				"start a pod: it recovers them. If a pod is running, find out from its log why recovery fails")
			continue
		}
		e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which knows of %d; the first is %d",
			jobs, name, w.PodID, w.Known, w.First),
			"wait two minutes: the pod hands back unknown jobs. If the finding remains, check its log and restart it")
	}
	if len(list) == 0 {
		e.find("running", Healthy, "every running job is known to its pod", "")
	}
	return nil
}
