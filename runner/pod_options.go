package runner

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// engineOptions configure an engine: see [Options].
type engineOptions struct {
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	PollEvery                          time.Duration
	LeaseFor, HeartbeatEvery           time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	StaleAfter                         time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}

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
