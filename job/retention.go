package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxKeepS is the longest that a kind may be kept, in seconds, but for ever: a hundred years.
const MaxKeepS = 100 * 365 * 24 * int64(time.Hour/time.Second)

// Retention says for how long the jobs of a kind are kept that ended in a state, where that is another time than for all kinds.
type Retention struct {
	Kind  string `json:"kind"`
	State State  `json:"state"`  // one in which jobs end
	KeepS int64  `json:"keep_s"` // seconds, at most [MaxKeepS]; 0: for ever
}

// Validate reports every mistake at once: [ErrInvalidSetting].
func (r Retention) Validate() error {
	var wrong []string
	if r.Kind == "" || len(r.Kind) > MaxKindBytes || !utf8.ValidString(r.Kind) || strings.ContainsRune(r.Kind, 0) {
		wrong = append(wrong, fmt.Sprintf("a kind is 1 to %d bytes of text", MaxKindBytes))
	}
	if !slices.Contains(States(), r.State) || !r.State.Terminal() {
		wrong = append(wrong, fmt.Sprintf("jobs end succeeded, failed or cancelled, not %q", string(r.State)))
	}
	if r.KeepS < 0 || r.KeepS > MaxKeepS {
		wrong = append(wrong, fmt.Sprintf("%d seconds: want 0, which is for ever, to %d", r.KeepS, MaxKeepS))
	}
	if wrong != nil {
		return fmt.Errorf("%w: %s", ErrInvalidSetting, strings.Join(wrong, "; "))
	}
	return nil
}

// RetentionChanged is what became of a [Retention].
type RetentionChanged struct {
	Kind    string `json:"kind"`
	State   State  `json:"state"`
	Changed bool   `json:"changed"`
	Before  *int64 `json:"before"` // seconds, 0 for ever; nil: as all other kinds
	After   *int64 `json:"after"`
}
