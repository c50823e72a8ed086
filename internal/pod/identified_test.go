package pod

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/matryer/is"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/job"
)

func TestLogRequestAndTraceIDs(t *testing.T) {
	is := is.New(t)
	var out bytes.Buffer
	log := slog.New(contextHandler{slog.NewTextHandler(&out, nil)}).With("pod", "a")
	log.InfoContext(t.Context(), "nobody asked")
	is.True(!strings.Contains(out.String(), "request_id") && !strings.Contains(out.String(), "trace_id")) // no IDs are made up
	ctx := job.WithOrigin(t.Context(), job.Origin{RequestID: "r-17"})
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	log.InfoContext(ctx, "somebody did")
	is.True(strings.Contains(out.String(), "pod=a request_id=r-17 trace_id=01000000000000000000000000000000 span_id=0200000000000000\n"))
}
