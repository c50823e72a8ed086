package pod

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// Options configures a pod. See runner.Options.
type Options struct {
	identity.Options
	Schema                                                       string
	BehindPooler, TraceQueries                                   bool
	MaxAge, ApprovalTTL                                          time.Duration
	FourEyes                                                     bool
	MinScheduleInterval                                          time.Duration
	PassEvery                                                    time.Duration // approximate interval between two searches for orphaned claims
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	Lanes                                                        []admin.BootLane
	OnEnd, OnRetry                                               telemetry.Hook
	TracerProvider                                               trace.TracerProvider
	Logger                                                       *slog.Logger
}
