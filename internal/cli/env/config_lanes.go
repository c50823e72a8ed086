package env

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/runner"
)

// LaneList is the value of TRAPEZE_LANES: name=slots:kinds, separated by commas, the kinds by plus signs. Without slots a lane has no
// limit, without kinds no kind is there by default.
type LaneList []runner.LaneSetup

// Decode implements envconfig.Decoder.
func (l *LaneList) Decode(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" && strings.TrimSpace(text) == "" {
			return nil
		}
		name, rest, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q: want name=slots:kinds", part)
		}
		slots, kinds, _ := strings.Cut(rest, ":")
		lane := runner.LaneSetup{Name: name}
		if slots != "" {
			n, err := strconv.Atoi(slots)
			if err != nil {
				return fmt.Errorf("%q: %q is no number of slots", part, slots)
			}
			lane.Slots = &n
		}
		if kinds != "" {
			lane.Kinds = strings.Split(kinds, "+")
		}
		*l = append(*l, lane)
	}
	return nil
}
