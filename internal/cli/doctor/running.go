package doctor

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// running finds jobs that are running on a pod that is gone, or that does not know them: nothing works on them.
func (d *doctor) running(ctx context.Context) error {
	list, err := view.FindUnknownWork(ctx, d.store)
	if err != nil {
		return err
	}
	for _, w := range list {
		jobs, name := humanize.Count(w.Jobs, "job is", "jobs are"), w.Pod
		if name == "" {
			name = "a pod without a row"
		}
		if w.Gone {
			d.find("running", failing, fmt.Sprintf("%s running on %s (%s), which is gone; the first is %d", jobs, name, w.Boot, w.First),
				"start a pod: it takes them back. If there is one: see in its log why its recovery fails")
			continue
		}
		d.find("running", failing, fmt.Sprintf("%s running on %s (%s), which works on %d; the first is %d",
			jobs, name, w.Boot, w.Known, w.First),
			"nothing for two minutes: the pod hands back what it does not know. If this stays: see its log, and restart it")
	}
	if len(list) == 0 {
		d.find("running", healthy, "every job that runs is known to its pod", "")
	}
	return nil
}
