package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// recorded is a tracer provider that records ended spans.
type recorded struct {
	*sdktrace.TracerProvider
	spans *tracetest.SpanRecorder
}

func recorder() recorded {
	spans := tracetest.NewSpanRecorder()
	return recorded{sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), spans}
}

// named waits until n spans with the given name have ended, and returns them in the order in which they ended.
func (r recorded) named(t *testing.T, n int, name string) (found []sdktrace.ReadOnlySpan) {
	t.Helper()
	pgtest.Wait(t, fmt.Sprintf("%d spans %q have ended", n, name), func() bool {
		found = nil
		for _, s := range r.spans.Ended() {
			if s.Name() == name {
				found = append(found, s)
			}
		}
		return len(found) >= n
	})
	return found
}

func (r recorded) one(t *testing.T, name string) sdktrace.ReadOnlySpan { return r.named(t, 1, name)[0] }

func childOf(s, parent sdktrace.ReadOnlySpan) bool {
	return s.Parent().SpanID() == parent.SpanContext().SpanID() && s.SpanContext().TraceID() == parent.SpanContext().TraceID()
}

func linked(from, to sdktrace.ReadOnlySpan) bool {
	for _, l := range from.Links() {
		if l.SpanContext.SpanID() == to.SpanContext().SpanID() && l.SpanContext.TraceID() == to.SpanContext().TraceID() {
			return true
		}
	}
	return false
}

func attributeOf(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// exception returns an attribute of a span's exception event, or "" if there is none.
func exception(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, e := range s.Events() {
		for _, a := range e.Attributes {
			if e.Name == "exception" && a.Key == key {
				return a.Value.String()
			}
		}
	}
	return ""
}

func TestAPipelineIsOneTrace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces := recorder()
	inside := make(chan trace.SpanContext, 1)
	r := start(t, pgtest.Pool(t), runner.Options{TracerProvider: traces}, map[string]handler{
		"first": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("second")), nil },
		"second": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			inside <- trace.SpanContextFromContext(ctx)
			return nil, nil
		},
		"third": succeed,
	})
	ctx, request := traces.Tracer("host").Start(t.Context(), "request")
	made, err := r.Enqueue(ctx, runner.Chain(rawArgs("first", `{"secret":"canary"}`), rawArgs("third")))
	is.NoErr(err)
	request.End()
	third := traces.one(t, "run third")
	enqueued, first, second := traces.one(t, "enqueue first"), traces.one(t, "run first"), traces.one(t, "run second")
	is.True(childOf(enqueued, traces.one(t, "request"))) // the trace starts with the host's request
	is.True(childOf(first, enqueued))
	is.True(childOf(second, first))
	is.True(childOf(third, second)) // whether declared or returned, each step is a child of the previous one
	is.Equal((<-inside).SpanID(), second.SpanContext().SpanID())
	is.Equal(enqueued.SpanKind(), trace.SpanKindProducer)
	is.Equal(first.SpanKind(), trace.SpanKindConsumer)
	is.Equal(len(first.Links()), 0) // a job that starts immediately has no links
	for key, want := range map[string]string{
		"messaging.system": "trapeze", "messaging.operation.name": "run", "messaging.operation.type": "process",
		"messaging.destination.name": "first", "messaging.message.id": fmt.Sprint(made.ID), "trapeze.job.id": fmt.Sprint(made.ID),
		"trapeze.kind": "first", "trapeze.lane": "default", "trapeze.attempt": "1", "trapeze.fence": "1", "trapeze.state": "succeeded",
	} {
		is.Equal(attributeOf(first, key), want) // users filter by these attributes
	}
	for _, s := range traces.spans.Ended() {
		is.True(!strings.Contains(fmt.Sprint(s.Attributes(), s.Events()), "canary")) // arguments are never recorded
	}
}

func TestRunSpanInSubmissionTrace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces, pool := recorder(), pgtest.Pool(t)
	o := runner.Options{TracerProvider: traces}
	r := start(t, pool, o, map[string]handler{"k": succeed, "tx": succeed, "key": succeed})
	_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k"), rawArgs("k")})
	is.NoErr(err)
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("tx"))
		return err
	}))
	enqueue(t, r, rawArgs("key"), runner.IdempotencyKey("one"))
	for _, run := range traces.named(t, 2, "run k") {
		is.True(childOf(run, traces.one(t, "enqueue k"))) // both jobs have the same parent
	}
	is.Equal(attributeOf(traces.one(t, "enqueue k"), "messaging.batch.message_count"), "2")
	is.True(childOf(traces.one(t, "run tx"), traces.one(t, "enqueue tx")))
	is.True(childOf(traces.one(t, "run key"), traces.one(t, "enqueue key")))
}

func TestRetryTraceLink(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces := recorder()
	r := start(t, pgtest.Pool(t), runner.Options{TracerProvider: traces}, map[string]handler{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, job.RetryAfter(time.Millisecond, errors.New("not yet"))
			}
			return nil, nil
		},
	})
	enqueue(t, r, rawArgs("k"), runner.MaxAttempts(2))
	runs := traces.named(t, 2, "run k")
	is.True(childOf(runs[0], traces.one(t, "enqueue k")))
	is.Equal(runs[0].Status().Code, codes.Error)
	is.Equal(exception(runs[0], "exception.message"), "not yet")
	is.True(!runs[1].Parent().IsValid())                 // the second attempt has no parent span
	is.True(linked(runs[1], traces.one(t, "enqueue k"))) // it links to the job's submission
	is.Equal(attributeOf(runs[1], "trapeze.attempt"), "2")
	is.Equal(attributeOf(runs[1], "trapeze.fence"), "2")
}

func TestTakeoverTraceLink(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	traces := recorder()
	wait, open := latch(t)
	named := func(name string) runner.Options {
		return runner.Options{PodName: name, TracerProvider: traces, LeaseDuration: 2 * time.Second, PollInterval: 200 * time.Millisecond}
	}
	a := start(t, cut, named("a"), map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil }})
	id := enqueueStarted(t, a, rawArgs("k"))
	b := start(t, direct, named("b"), map[string]handler{"k": succeed})
	proxy.Blackhole()
	is.Equal(waitEnded(t, b, id).State, job.Succeeded)
	taken := traces.one(t, "run k")
	is.True(!taken.Parent().IsValid())
	is.True(linked(taken, traces.one(t, "enqueue k")))
	is.Equal(attributeOf(taken, "trapeze.fence"), "2")
	proxy.Pass()
	open()
	late := traces.named(t, 2, "run k")[1]
	is.True(childOf(late, traces.one(t, "enqueue k")))
	is.Equal(attributeOf(late, "error.type"), "lease_lost") // the pod that lost its lease reports the error
}

func TestFanOutChildrenTraceLinks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces := recorder()
	r := start(t, pgtest.Pool(t), runner.Options{TracerProvider: traces}, map[string]handler{
		"fan": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("leaf"), rawArgs("leaf"), rawArgs("leaf")).Join(rawArgs("join")), nil
		},
		"leaf": succeed, "join": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("after")), nil }, "after": succeed,
	})
	enqueue(t, r, rawArgs("fan"))
	after, fan, join := traces.one(t, "run after"), traces.one(t, "run fan"), traces.one(t, "run join")
	leaves, sent := traces.named(t, 3, "run leaf"), traces.named(t, 3, "enqueue leaf")
	own := map[trace.TraceID]bool{fan.SpanContext().TraceID(): true, join.SpanContext().TraceID(): true}
	for _, s := range sent {
		is.True(linked(s, fan)) // the child links to the job that fanned out
		is.True(linked(fan, s)) // the job that fanned out links to the child
		is.True(linked(join, s))
		own[s.SpanContext().TraceID()] = true
	}
	is.Equal(len(own), 5) // five separate traces
	for _, leaf := range leaves {
		is.True(own[leaf.SpanContext().TraceID()]) // a run belongs to its submission's trace
		is.True(leaf.Parent().IsValid())
	}
	is.True(linked(join, traces.one(t, "enqueue fan"))) // the join links to the fan-out's submission
	is.True(childOf(after, join))                       // later steps stay in the join's trace
}

func TestPanicRecordedInSpan(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces := recorder()
	r := start(t, pgtest.Pool(t), runner.Options{TracerProvider: traces}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) { panic("at the disco") },
	})
	enqueue(t, r, rawArgs("k"))
	run := traces.one(t, "run k")
	is.Equal(run.Status().Code, codes.Error)
	is.Equal(exception(run, "exception.type"), "panic")
	is.Equal(exception(run, "exception.message"), "at the disco")
	is.True(strings.Contains(exception(run, "exception.stacktrace"), "TestPanicRecordedInSpan")) // the stack shows where the panic happened
	is.Equal(attributeOf(run, "error.type"), "error")
	is.Equal(attributeOf(run, "trapeze.state"), "failed")
}

func TestTraceContextWithoutTracer(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]runner.Options{"none is set": {}, "one that does nothing is": {TracerProvider: noop.NewTracerProvider()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := start(t, pool, o, map[string]handler{"k": succeed, "f": func(context.Context, *raw) (*runner.Outcome, error) {
				return runner.Then(rawArgs("k")), nil
			}})
			// Nothing may be stored, even if the caller's context contains a span.
			ctx, span := recorder().Tracer("host").Start(t.Context(), "request")
			defer span.End()
			_, err := r.Enqueue(ctx, rawArgs("f"))
			is.NoErr(err)
			quiet(t, pool)
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where traceparent is not null`), 0) // nothing is stored
		})
	}
}

func TestTraceAcrossUntracedPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces, pool := recorder(), pgtest.Pool(t)
	web := newRunner(t, pool, runner.Options{TracerProvider: traces, Disabled: true}, map[string]handler{"first": succeed, "second": succeed})
	_, err := web.Enqueue(t.Context(), runner.Chain(rawArgs("first"), rawArgs("second")))
	is.NoErr(err)
	mute := start(t, pool, runner.Options{Kinds: []string{"first"}}, map[string]handler{"first": succeed, "second": succeed})
	start(t, pool, runner.Options{TracerProvider: traces, Kinds: []string{"second"}}, map[string]handler{"first": succeed, "second": succeed})
	is.True(childOf(traces.one(t, "run second"), traces.one(t, "enqueue first"))) // the parent is found across the untraced step
	_ = mute
}

func TestLateRunTraceLink(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces, pool := recorder(), pgtest.Pool(t)
	web := newRunner(t, pool, runner.Options{TracerProvider: traces, Disabled: true}, map[string]handler{"k": succeed})
	enqueue(t, web, rawArgs("k"))
	exec(t, pool, `update trapeze.jobs set created_at = now() - interval '1 hour'`) // too long ago for the run to join the submission's trace
	start(t, pool, runner.Options{TracerProvider: traces}, map[string]handler{"k": succeed})
	run := traces.one(t, "run k")
	is.True(!run.Parent().IsValid())
	is.True(linked(run, traces.one(t, "enqueue k")))
}
