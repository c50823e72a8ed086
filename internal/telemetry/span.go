package telemetry

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
)

// Span is a run's span. If the run is not traced, its methods do nothing.
type Span struct{ span trace.Span }

// Recorded reports whether the run has a span.
func (s Span) Recorded() bool { return s.span != nil }

// End ends the span.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}

// Traceparent returns the trace position to store with the next step: that of the run's span or, if the run has no span, the stored
// position of the run's job. This way, a pod without tracing does not break a trace.
func (s Span) Traceparent(stored string) string {
	if s.span == nil {
		return stored
	}
	return Traceparent(s.span)
}

// Error records that a run ended with an error.
func (s Span) Error(reason job.Reason, err error) {
	if s.span != nil {
		failed(s.span, string(reason), err)
	}
}

// Event records an event of a run, other than its end, under the name that the event has in the job's history.
func (s Span) Event(name string, about ...attribute.KeyValue) {
	if s.span != nil {
		s.span.AddEvent(name, trace.WithAttributes(about...))
	}
}

// State records the state in which a run has left its job.
func (s Span) State(state job.State) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String("trapeze.state", string(state)))
	}
}

// Link adds links from the span to other trace positions.
func (s Span) Link(traceparents ...string) {
	if s.span == nil {
		return
	}
	for _, traceparent := range traceparents {
		if from := traceOf(traceparent); from.IsValid() {
			s.span.AddLink(trace.Link{SpanContext: from})
		}
	}
}

// failed records an error on a span, with its text and, for a panic, the stack.
func failed(span trace.Span, reason string, err error) {
	span.SetStatus(codes.Error, reason)
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	about := []attribute.KeyValue{semconv.ExceptionType(fmt.Sprintf("%T", err)), semconv.ExceptionMessage(job.Storable(err.Error(), job.MaxErrorBytes))}
	if p, ok := errors.AsType[*routine.Panic](err); ok {
		about = []attribute.KeyValue{semconv.ExceptionType("panic"), semconv.ExceptionMessage(job.Storable(p.Value, job.MaxErrorBytes)),
			semconv.ExceptionStacktrace(p.Stack)}
	}
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(about...))
}
