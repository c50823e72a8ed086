package engine

import (
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"

	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/job"
)

// kind is a registered handler, with its types erased once so that nothing reflects on the way of a job.
type Kind struct {
	Name        string
	Timeout     time.Duration
	MaxAttempts int // 0: the default
	MaxCrashes  int // 0: the default
	Backoff     job.Backoff
	StaleAfter  *time.Duration // nil: what the lane says, else the pod; 0: off
	KeepRunning bool
	InDatabase  bool
	Run         func(ctx context.Context, j *work.Job) (*work.Outcome, error)
	RunSeconds  prometheus.Observer
	Ends        *telemetry.KindEnds // nil: a kind that only remote workers have
}
