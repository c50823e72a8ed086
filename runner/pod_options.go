package runner

import (
	"github.com/trapeze-run/trapeze/internal/engine"

	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// podOptions configure a pod: see [Options].
type podOptions struct {
	engine.Options
	Schema                                                       string
	BehindPooler                                                 bool
	Timeout                                                      time.Duration
	MaxAge, ApprovalTTL                                          time.Duration
	MinScheduleInterval                                          time.Duration
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	Lanes                                                        []admin.BootLane
	TracerProvider                                               trace.TracerProvider
	Logger                                                       *slog.Logger
}
