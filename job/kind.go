package job

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// KindUse describes a kind, its jobs and the pods that handle it.
type KindUse struct {
	Kind        string        `json:"kind"`
	Lane        string        `json:"lane"`          // the default lane of its jobs
	Slots       *int          `json:"slots"`         // slots of the lane across all pods; nil means no limit
	SlotsPerPod *int          `json:"slots_per_pod"` // slots of the lane on each pod; nil means no limit
	Running     int           `json:"running"`       // number of running jobs
	Waiting     int           `json:"waiting"`       // number of due jobs that are not running
	Oldest      *time.Time    `json:"oldest"`        // when the oldest of the waiting jobs became due
	Ended       StatsOf       `json:"ended"`         // jobs that ended in the period
	Handlers    []KindHandler `json:"handlers"`      // empty if no pod handles the kind
}

// KindHandler groups the pods that handle a kind with the same version and limits.
type KindHandler struct {
	Version string      `json:"version"`
	Pods    []string    `json:"pods"`
	Remote  bool        `json:"remote"` // the pods are remote workers
	Limits  *KindLimits `json:"limits"` // nil if the pods run an earlier release that does not report limits
}

// KindLimits holds the limits that a pod declares for a kind's jobs.
type KindLimits struct {
	Timeout           Seconds  `json:"timeout_s"` // 0 means no limit
	MaxAttempts       int      `json:"max_attempts"`
	MaxCrashes        int      `json:"max_crashes"`
	InactivityTimeout *Seconds `json:"inactivity_timeout_s"` // 0 means no limit; nil means the lane's setting applies
}

// String describes the limits in words.
func (l KindLimits) String() string {
	count := func(n int, one, many string) string {
		if n == 1 {
			many = one
		}
		return fmt.Sprintf("%d %s", n, many)
	}
	words := []string{count(l.MaxAttempts, "attempt", "attempts"), count(l.MaxCrashes, "crash", "crashes")}
	if l.Timeout > 0 {
		words = append(words, "timeout "+l.Timeout.String())
	}
	if l.InactivityTimeout != nil && *l.InactivityTimeout > 0 {
		words = append(words, "inactive for "+l.InactivityTimeout.String())
	}
	return strings.Join(words, ", ")
}

var (
	validKind = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.:/@+-]+`)
)

// ValidateKind returns [ErrInvalid] unless name is a valid name for a new kind: 1 to 100 ASCII letters, digits and _ . : / @ + -, starting
// with a letter, a digit or _. A valid name needs no quoting in a shell, a URL or a metric. Existing jobs are unaffected, even if their
// kinds have invalid names.
func ValidateKind(name string) error {
	if len(name) > MaxKindBytes || !validKind.MatchString(name) {
		return fmt.Errorf("%w: kind %.100q: want 1 to %d letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _", ErrInvalid, name, MaxKindBytes)
	}
	return nil
}

// DisplayName returns name as a display name for a pod or remote worker. It replaces characters that are not allowed in kinds with hyphens,
// and truncates the name to 100 bytes.
func DisplayName(name string) string {
	name = notInName.ReplaceAllString(name, "-")
	if len(name) > 0 && !validKind.MatchString(name[:1]) {
		name = "_" + name
	}
	return name[:min(len(name), 100)]
}

// Backoff computes the delay before the next attempt. The delay starts at Base and doubles with every attempt up to Cap. Jitter randomizes
// the delay so that jobs that failed together do not all retry at once.
type Backoff struct {
	Base   time.Duration // delay after the first attempt; default 1s
	Cap    time.Duration // longest delay; default 10m
	Jitter float64       // random fraction of the delay, 0 to 1; default 0.2; negative means none
}

// Wait returns the delay after the given attempt, counted from 1: min(Cap, Base · 2^(attempt−1)), reduced by a random fraction of at most
// Jitter. u is a random number in [0, 1); the result is deterministic for a given u.
func (b Backoff) Wait(attempt int, u float64) time.Duration {
	base, limit, jitter := b.Base, b.Cap, b.Jitter
	if base <= 0 {
		base = time.Second
	}
	if limit <= 0 {
		limit = 10 * time.Minute
	}
	switch {
	case jitter == 0:
		jitter = 0.2
	case jitter < 0 || math.IsNaN(jitter):
		jitter = 0
	}
	wait := math.Min(float64(limit), float64(base)*math.Pow(2, float64(max(attempt, 1)-1)))
	if wait *= 1 - min(jitter, 1)*u; wait >= math.MaxInt64 {
		return math.MaxInt64 // a larger value would overflow
	}
	return time.Duration(wait)
}

// Random returns the delay after the given attempt with random jitter.
func (b Backoff) Random(attempt int) time.Duration { return b.Wait(attempt, rand.Float64()) } // #nosec G404 -- jitter

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
