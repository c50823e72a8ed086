package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// What a run's span is told. All of it does nothing when nobody traces.

// traceparent is what the step that follows this run stores: the run's span, or what the run itself was submitted with, so that
// a pod that does not trace breaks no trace.
func (one *Run) traceparent() string {
	if one.span == nil {
		return one.Claimed.Trace
	}
	return Traceparent(one.span)
}

// failed marks a span with an error: its text, which is the handler's own, and the stack of a panic.
func failed(span trace.Span, reason string, err error) {
	span.SetStatus(codes.Error, reason)
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	about := []attribute.KeyValue{semconv.ExceptionType(fmt.Sprintf("%T", err)), semconv.ExceptionMessage(job.Storable(err.Error(), job.MaxErrorBytes))}
	if p, ok := errors.AsType[*guard.Panic](err); ok {
		about = []attribute.KeyValue{semconv.ExceptionType("panic"), semconv.ExceptionMessage(job.Storable(p.Value, job.MaxErrorBytes)),
			semconv.ExceptionStacktrace(p.Stack)}
	}
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(about...))
}

// traceError notes that a run ended in an error.
func (one *Run) traceError(reason job.Reason, err error) {
	if one.span != nil {
		failed(one.span, string(reason), err)
	}
}

// traceEvent notes what became of a run that is no end: the names are those of the job's history.
func (one *Run) traceEvent(name string, about ...attribute.KeyValue) {
	if one.span != nil {
		one.span.AddEvent(name, trace.WithAttributes(about...))
	}
}

// traceState notes in which state a run left its job.
func (one *Run) traceState(s job.State) {
	if one.span != nil {
		one.span.SetAttributes(attribute.String("trapeze.state", string(s)))
	}
}

// linksWithin bounds the look for what a join is to be linked to: its handler waits for it.
const linksWithin = time.Second

// traceBranches links the run of a join to the fan-out and the first of its children. A join is the one job with a parent
// that has no context of its own.
func (r *Engine) traceBranches(one *Run) {
	c := &one.Claimed
	if one.span == nil || c.ParentID == nil || c.Trace != "" {
		return
	}
	ctx, cancel := context.WithTimeout(one.Ctx, linksWithin)
	defer cancel()
	found, err := view.TracesOfFanOut(ctx, r.Commands, c.PipelineID, *c.ParentID, maxLinks)
	if err != nil {
		_ = r.DBError(err) // the trace is poorer, the job is not
	}
	for _, traceparent := range found {
		if from := traceOf(traceparent); from.IsValid() {
			one.span.AddLink(trace.Link{SpanContext: from})
		}
	}
}
