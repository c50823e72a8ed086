package engine

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Options configure an engine: see the Options of package runner.
type Options struct {
	Boot                               string                 // empty: a random one
	MayUse                             func(lane string) bool // nil: all lanes
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	PollEvery                          time.Duration
	LeaseFor, HeartbeatEvery           time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	Timeout, StaleAfter                time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}

// Kind is a registered handler, with its types erased once so that nothing reflects on the way of a job.
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
