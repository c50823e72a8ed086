package env

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/runner"
)

// parseLanes parses TRAPEZE_LANES. Its format is name=slots:kinds, with commas between lanes and plus signs between kinds. A lane without
// slots has no limit. A lane without kinds is not the default lane of any kind.
func parseLanes(text string) (lanes []runner.LaneSetup, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, rest, ok := strings.Cut(part, "=")
		slots, kinds, _ := strings.Cut(rest, ":")
		lane := runner.LaneSetup{Name: strings.TrimSpace(name)}
		if slots = strings.TrimSpace(slots); slots != "" {
			n, err := strconv.Atoi(slots)
			lane.Slots, ok = &n, ok && err == nil
		}
		if kinds = strings.TrimSpace(kinds); kinds != "" {
			for kind := range strings.SplitSeq(kinds, "+") {
				lane.Kinds = append(lane.Kinds, strings.TrimSpace(kind))
			}
		}
		if !ok {
			return nil, fmt.Errorf("TRAPEZE_LANES=%q: want lanes such as interactive=2:csv_ingest+unit_sync,maintenance=1:factor_sync: name=slots:kinds", text)
		}
		lanes = append(lanes, lane)
	}
	return lanes, nil
}
