package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxKeep is the longest retention period other than forever: a hundred years.
const MaxKeep = 100 * 365 * 24 * time.Hour

// Retention overrides how long a kind's jobs are kept after they end in State.
type Retention struct {
	Kind  string  `json:"kind"`
	State State   `json:"state"`  // a terminal state
	Keep  Seconds `json:"keep_s"` // whole seconds, at most [MaxKeep]; 0 means forever
}

// Validate reports all invalid settings as a single [ErrInvalidSetting].
func (r Retention) Validate() error {
	var wrong []string
	if r.Kind == "" || len(r.Kind) > MaxKindBytes || !utf8.ValidString(r.Kind) || strings.ContainsRune(r.Kind, 0) {
		wrong = append(wrong, fmt.Sprintf("kind: want 1 to %d bytes of text", MaxKindBytes))
	}
	if !slices.Contains(States(), r.State) || !r.State.Terminal() {
		wrong = append(wrong, fmt.Sprintf("state %q: want succeeded, failed or cancelled", string(r.State)))
	}
	if d := r.Keep.Duration(); d < 0 || d > MaxKeep || d%time.Second != 0 {
		wrong = append(wrong, fmt.Sprintf("%v seconds: want a whole number from 0 (forever) to %d", d.Seconds(), int64(MaxKeep/time.Second)))
	}
	if wrong != nil {
		return fmt.Errorf("%w: %s", ErrInvalidSetting, strings.Join(wrong, "; "))
	}
	return nil
}

// RetentionChanged is the result of changing a [Retention].
type RetentionChanged struct {
	Kind    string   `json:"kind"`
	State   State    `json:"state"`
	Changed bool     `json:"changed"`
	Before  *Seconds `json:"before"` // 0 means forever; nil means the default for all kinds
	After   *Seconds `json:"after"`
}
