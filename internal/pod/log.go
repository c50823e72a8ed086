package pod

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// contextHandler adds the context's request ID and trace to each log record.
type contextHandler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h contextHandler) Handle(ctx context.Context, line slog.Record) error {
	if id := job.OriginOf(ctx).RequestID; id != "" {
		line.AddAttrs(slog.String(telemetry.RequestID, id))
	}
	if at := trace.SpanContextFromContext(ctx); at.IsValid() {
		line.AddAttrs(slog.String(telemetry.TraceID, at.TraceID().String()), slog.String(telemetry.SpanID, at.SpanID().String()))
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contextHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h contextHandler) WithGroup(name string) slog.Handler {
	return contextHandler{h.Handler.WithGroup(name)}
}
