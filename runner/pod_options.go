package runner

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// podOptions configure a pod: see [Options].
type podOptions struct {
	engineOptions
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
