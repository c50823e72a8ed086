package tracing

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/job"
)

// Span is the span of a run. All of it does nothing when there is none.
type Span struct{ span trace.Span }

// Recorded reports whether there is a span.
func (s Span) Recorded() bool { return s.span != nil }

// End ends the span.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}

// Traceparent returns what the step that follows the run stores: the run's span, or stored, what the run itself was submitted with, so that
// a pod that does not trace breaks no trace.
func (s Span) Traceparent(stored string) string {
	if s.span == nil {
		return stored
	}
	return Traceparent(s.span)
}

// Error notes that a run ended in an error.
func (s Span) Error(reason job.Reason, err error) {
	if s.span != nil {
		failed(s.span, string(reason), err)
	}
}

// Event notes what a run did that is no end: the names are those of the job's history.
func (s Span) Event(name string, about ...attribute.KeyValue) {
	if s.span != nil {
		s.span.AddEvent(name, trace.WithAttributes(about...))
	}
}

// State notes in which state a run left its job.
func (s Span) State(state job.State) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String("trapeze.state", string(state)))
	}
}

// Link links the span to others.
func (s Span) Link(traceparents ...string) {
	for _, traceparent := range traceparents {
		if from := traceOf(traceparent); from.IsValid() {
			s.span.AddLink(trace.Link{SpanContext: from})
		}
	}
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
