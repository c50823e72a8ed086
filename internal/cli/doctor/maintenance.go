package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// lateAfter is when a chore of the maintenance is late: each is due within the hour, and another pod does it after three of its intervals.
const lateAfter = 4 * time.Hour

// maintenance looks when each chore was last done. A fleet that was shut down is late with all of them, and that is found elsewhere.
func (d *doctor) maintenance(ctx context.Context) error {
	turns, err := upkeep.Turns(ctx, d.store)
	if err != nil {
		return err
	}
	pods, err := view.ReadPodHealth(ctx, d.store)
	if err != nil || len(pods) == 0 {
		return err
	}
	bad := false
	var late []string
	for _, t := range turns {
		if t.Error != "" {
			bad = true
			d.find("maintenance", warning, fmt.Sprintf("the chore %s failed on %s: %s", t.Chore, t.Pod, humanize.OneLine(fmt.Errorf("%s", t.Error))),
				"see what the error names; the next round tries again")
		}
		if t.Ago > lateAfter.Seconds() {
			late = append(late, fmt.Sprintf("%s (%s ago)", t.Chore, humanize.Seconds(t.Ago)))
		}
	}
	if len(late) > 0 {
		bad = true
		d.find("maintenance", warning, "not done for long: "+strings.Join(late, ", "), "see the logs of the pods; select * from "+d.config.Options.Schema+".maintenance")
	}
	if !bad {
		d.find("maintenance", healthy, fmt.Sprintf("%d chores are done in time", len(turns)), "")
	}
	return nil
}
