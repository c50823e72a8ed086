package telemetry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Tracer creates the spans of submissions and runs. A submission has a producer span, whose context is stored with the job, and a run has a
// consumer span. A run that starts promptly belongs to its submission's trace:
//
//	enqueue csv_ingest ─▶ run csv_ingest ─▶ run factor_sync ─▶ …
//
// Other runs have separate traces, which are linked to the stored context: runs after a retry, a takeover or a wait of a minute or more;
// children of a fan-out, which are linked to the run that fanned out; and joins, which are linked to the children. This way, no trace stays
// open for hours or has ten thousand branches.
type Tracer struct {
	Provider trace.TracerProvider // nil selects the current global provider
}

const (
	tracerName = "github.com/trapeze-run/trapeze/runner" // shown to users
	// MaxLinks is the maximum number of links from a fan-out or its join to the children. Callers of [Span.Link] must observe this limit.
	MaxLinks = 32
)

// unset is the global provider that is in use until a program sets another. It is nil if a provider was set before this package was
// initialized.
var unset = func() trace.TracerProvider {
	p := otel.GetTracerProvider()
	if t := reflect.TypeOf(p); t.Kind() == reflect.Pointer && strings.HasSuffix(t.Elem().PkgPath(), "/otel/internal/global") {
		return p
	}
	return nil
}()

// tracer returns the tracer to use, or nil if no provider is set.
func (t Tracer) tracer() trace.Tracer {
	p := t.Provider
	if p == nil {
		p = otel.GetTracerProvider()
	}
	if _, off := p.(noop.TracerProvider); off || p == unset {
		return nil
	}
	return p.Tracer(tracerName, trace.WithSchemaURL(semconv.SchemaURL))
}

// StartSubmission starts a submission's span. If no provider is set, it returns a nil span.
func (t Tracer) StartSubmission(ctx context.Context, kind, lane string, jobs int, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	tracer := t.tracer()
	if tracer == nil {
		return ctx, nil
	}
	about := append(operation("enqueue", kind, lane), semconv.MessagingOperationTypeSend)
	if jobs > 1 {
		about = append(about, semconv.MessagingBatchMessageCount(jobs))
	}
	return tracer.Start(ctx, "enqueue "+kind, append(options, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(about...))...)
}

// EndSubmission ends a submission's span. The id is that of the submitted job, or 0 if there are several.
func EndSubmission(span trace.Span, id int64, err error) {
	if span == nil {
		return
	}
	switch {
	case err != nil:
		failed(span, "submission", err)
	case id != 0:
		span.SetAttributes(identity(id)...)
	}
	span.End()
}

// StartRun starts the span for a claimed job's run.
func (t Tracer) StartRun(ctx context.Context, c *store.Claimed) (context.Context, Span) {
	tracer := t.tracer()
	if tracer == nil {
		return ctx, Span{}
	}
	about := append(operation("run", c.Kind, c.Lane), identity(c.ID)...)
	about = append(about, semconv.MessagingOperationTypeProcess, attribute.Int("trapeze.attempt", c.Attempt),
		attribute.Int64("trapeze.fence", c.Fence), attribute.Int64("trapeze.pipeline.id", c.PipelineID),
		attribute.Int("trapeze.step", c.Step), attribute.String("trapeze.path", c.Path))
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(about...)}
	if from := traceOf(c.Trace); !from.IsValid() {
		options = append(options, trace.WithNewRoot())
	} else if c.FirstClaim() && !c.Late() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
	} else {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
	}
	ctx, span := tracer.Start(ctx, "run "+c.Kind, options...)
	return ctx, Span{span}
}

// Continue returns a context in which new spans belong to a job's trace. It is for handlers whose run has no span in this process.
func (t Tracer) Continue(ctx context.Context, traceparent string) context.Context {
	if from := traceOf(traceparent); t.tracer() != nil && from.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
	}
	return ctx
}

// Child creates the span for submitting a child of a fan-out. The span starts a new trace, and is linked to the span of the run that fans
// out and, up to MaxLinks children, vice versa. Child returns the trace position to store with the child.
func (t Tracer) Child(ctx context.Context, from Span, n *store.NewJob) string {
	if from.span == nil {
		return ""
	}
	_, span := t.StartSubmission(ctx, n.Kind, n.Lane, 1, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from.span.SpanContext()}))
	if span == nil {
		return ""
	}
	if n.No != nil && *n.No <= MaxLinks {
		from.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	EndSubmission(span, n.ID, nil)
	return Traceparent(span)
}

// operation returns the attributes of an operation. Its destination is the kind, because handlers are registered by kind.
func operation(name, kind, lane string) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String("trapeze"), semconv.MessagingOperationName(name),
		semconv.MessagingDestinationName(kind), attribute.String("trapeze.kind", kind), attribute.String("trapeze.lane", lane)}
}

func identity(id int64) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingMessageID(strconv.FormatInt(id, 10)), attribute.Int64("trapeze.job.id", id)}
}

// Traceparent returns a span's position in its stored form, or an empty string if span is nil.
func Traceparent(span trace.Span) string {
	if span == nil {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), span), carrier)
	return carrier.Get("traceparent")
}

// traceOf parses a result of Traceparent. For any other text, it returns an invalid span context.
func traceOf(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

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
