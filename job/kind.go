package job

import (
	"fmt"
	"strings"
	"time"
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
	Timeout     Seconds  `json:"timeout_s"` // 0 means no limit
	MaxAttempts int      `json:"max_attempts"`
	MaxCrashes  int      `json:"max_crashes"`
	StaleAfter  *Seconds `json:"stale_after_s"` // 0 means no limit; nil means the lane's setting applies
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
	if l.StaleAfter != nil && *l.StaleAfter > 0 {
		words = append(words, "stale after "+l.StaleAfter.String())
	}
	return strings.Join(words, ", ")
}
