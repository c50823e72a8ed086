package runner

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	plain "github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/job"
)

// kind is a registered handler, with its types erased once so that nothing reflects on the way of a job.
type kind struct {
	name        string
	timeout     time.Duration
	maxAttempts int // 0: the default
	maxCrashes  int // 0: the default
	backoff     job.Backoff
	staleAfter  *time.Duration // nil: what the lane says, else the pod; 0: off
	keepRunning bool
	inDatabase  bool
	run         func(ctx context.Context, j *plain.Job) (*plain.Outcome, error)
	runSeconds  prometheus.Observer
	ends        *endCounters // nil: a kind that only remote workers have
}
